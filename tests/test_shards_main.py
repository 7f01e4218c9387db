"""`python -m shards`: its commands, and the decoder that lint gets."""

import io
import subprocess
import sys
from pathlib import Path

import pytest

from shards.__main__ import main, strict_decoder
from tars_made import END, member, sample

ROOT = Path(__file__).resolve().parents[1]


def picture() -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", (16, 16), "red").save(out, "JPEG")
    return out.getvalue()


@pytest.mark.parametrize("arguments", [["-h"], ["--help"]])
def test_help_is_exit_status_0(capsys, arguments):
    assert main(arguments) == 0
    assert "usage: python -m shards {inspect,lint}" in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "said"), [([], "no command is given"), (["look"], "'look' is no command")])
def test_wrong_usage_is_exit_status_2(capsys, arguments, said):
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def test_the_decoder_takes_what_training_takes_and_no_more():
    from stream.errors import DecodeError

    decode = strict_decoder()
    decode(picture())
    for data in (b"", b"j" * 700, picture()[:-40]):
        with pytest.raises(DecodeError):
            decode(data)


def test_lint_decodes_with_it(capsys, tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(member("a.jpg", picture()) + member("b.jpg", picture()[:-40]) + END)
    assert main(["lint", str(path)]) == 0
    assert main(["lint", str(path), "--decode"]) == 1
    assert " b.jpg: image in this member: " in capsys.readouterr().out


def test_the_program_runs_and_loads_nothing_heavy(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(b"".join(sample("a")) + END)
    code = (
        "import sys; from shards.__main__ import main; "
        f"status = main(['lint', {str(path)!r}]) or main(['inspect', {str(path)!r}]); "
        "heavy = {'torch', 'numpy', 'PIL', 'accelerate', 'fsspec', 'stream', 'webdataset'} & set(sys.modules); "
        "sys.exit(f'{heavy}' if heavy else status)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")
    run = subprocess.run(
        [sys.executable, "-m", "shards", "lint", str(tmp_path / "no.tar")], cwd=ROOT, capture_output=True, timeout=60
    )
    assert run.returncode == 1


def test_whoever_reads_the_output_may_stop(tmp_path):
    (tmp_path / "a.tar").write_bytes(b"".join(member(f"{number}/a", kind=b"2") for number in range(9)) + END)
    for command in ("lint", "inspect"):
        script = f"{sys.executable} -m shards {command} {tmp_path}/a.tar | true; exit ${{PIPESTATUS[0]}}"
        run = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=60)
        assert run.stderr == ""
