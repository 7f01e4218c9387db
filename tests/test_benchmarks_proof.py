"""The program that writes the log of a proof."""

from pathlib import Path

import pytest

import proof


def test_a_step_is_logged_with_its_command_status_and_output():
    succeeded, text = proof.section("Say it", 'python -c "print(1 + 1)"', "/nowhere")
    assert succeeded
    assert text.startswith("\n## Say it\n\n`python -c")
    assert text.endswith("```\n2\n```\n")


def test_a_step_that_failed_is_told_and_logged():
    succeeded, text = proof.section("Fail", 'python -c "raise SystemExit(3)"', "/nowhere")
    assert not succeeded
    assert "(exit status 3" in text


def test_the_folder_of_the_outputs_is_not_named(tmp_path):
    _, text = proof.section("Say it", "python -c \"print('$OUT/x')\"", str(tmp_path))
    assert str(tmp_path) not in text
    assert "OUT/x" in text


def test_the_head_says_when_where_and_what():
    head = proof.head("2")
    assert all(word in head for word in ("date", "commit", "machine", "Python 3"))


def test_without_the_real_images_nothing_is_measured(monkeypatch, capsys):
    monkeypatch.setattr(proof, "COCO", Path("nowhere"))
    assert proof.main([]) == 1
    assert "nowhere" in capsys.readouterr().err


@pytest.mark.parametrize("failing", [False, True])
def test_the_log_is_written_whatever_happens(monkeypatch, tmp_path, failing):
    steps = (("One", "python -c \"print('one')\""), ("Two", f'python -c "raise SystemExit({int(failing)})"'))
    monkeypatch.setattr(proof, "ISSUES", {"7": steps})
    monkeypatch.setattr(proof, "RESULTS", tmp_path)
    monkeypatch.setattr(proof, "COCO", Path())
    assert proof.main(["7"]) == int(failing)
    log = (tmp_path / "7.md").read_text()
    assert "## One" in log
    assert f"(exit status {int(failing)}" in log


def test_an_issue_without_steps_is_refused(capsys):
    with pytest.raises(SystemExit):
        proof.main(["99"])
    assert "no steps are known for 99; there are 2, 3" in capsys.readouterr().err
