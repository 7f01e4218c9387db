"""tools/train_captioner.py: real ranks under both launchers and in both modes, and what it refuses."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file

from captioner import Captioner, Vocabulary
from coco_cases import draw, pack, run_tool, tool
from demo import end
from train_captioner import RanksError, check_ranks, parse, whole

RANKS = 2
IMAGES = 24
LAUNCHERS = {
    "torchrun": ("-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc_per_node"),
    "accelerate": (
        *("-m", "accelerate.commands.launch", "--multi_gpu", "--num_machines", "1", "--main_process_port", "0"),
        *("--mixed_precision", "no", "--dynamo_backend", "no", "--num_processes"),
    ),
}


class Run:
    """One run of the program by a launcher: exit status, output and results."""

    def __init__(self, launcher, mode, data, folder, *more):
        results = folder / f"{launcher}-{mode}.json"
        command = [sys.executable, *LAUNCHERS[launcher], str(RANKS)]
        command += tool("train_captioner.py", "--data", data, "--mode", mode, "--json", results, *more)[1:]
        self.status, self.output, self.errors = finish(command)
        self.results = json.loads(results.read_text()) if self.status == 0 else {}


def finish(command, timeout_s=120):
    """Run a command to its end; end it with its ranks when that takes too long."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, process_group=0
    )
    try:
        output, errors = process.communicate(timeout=timeout_s)
    finally:
        end(process)
    return process.returncode, output, errors


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    packed = pack(*draw(folder / "drawn", IMAGES), folder / "packed")
    assert packed.returncode == 0
    return folder / "packed", json.loads(packed.stdout)["captions"]


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory):
    """Each launcher's and mode's run, made when it is first asked for."""
    made, folder = {}, tmp_path_factory.mktemp("runs")

    def run(launcher, mode):
        if (launcher, mode) not in made:
            options = ("--image-size", 32, "--log-every", 2, "--checkpoint", folder / f"{launcher}-{mode}")
            made[launcher, mode] = Run(launcher, mode, data[0], folder, *options)
            made[launcher, mode].checkpoint = folder / f"{launcher}-{mode}" / "epoch-2"
        return made[launcher, mode]

    return run


@pytest.mark.ranks
@pytest.mark.parametrize("mode", ["dispatch", "shard"])
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_two_ranks_train_on_every_caption_in_each_epoch(runs, data, launcher, mode):
    run = runs(launcher, mode)
    assert (run.status, run.errors) == (0, "")
    assert run.output.startswith(f"training on {RANKS} ranks, rank 0 on cpu")
    assert f"\nranks: {RANKS} (this is rank 0)\n" in run.output
    assert f"\nmode: {mode};" in run.output
    assert (run.results["ranks"], run.results["mode"]) == (RANKS, mode)
    assert [epoch["rows"] for epoch in run.results["epochs"]] == [data[1]] * 2


@pytest.mark.ranks
def test_the_loss_falls_and_is_printed_with_the_rate(runs):
    run = runs("torchrun", "dispatch")
    first, last = (epoch["loss"] for epoch in run.results["epochs"])
    assert last < 0.8 * first
    assert f"\nepoch 1, step 2 of {-(-run.results['epochs'][0]['rows'] // 24)}: loss " in run.output
    assert f"\nepoch 2: loss {last:.3f}; " in run.output
    assert " samples/s; " in run.output


@pytest.mark.ranks
def test_both_modes_train_on_the_same_steps(runs):
    losses = [[epoch["loss"] for epoch in runs("torchrun", mode).results["epochs"]] for mode in ("dispatch", "shard")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.ranks
def test_three_generated_captions_stand_beside_the_true_ones(runs, data):
    run = runs("torchrun", "dispatch")
    captions = run.results["captions"]
    assert [caption["key"] for caption in captions] == [f"{number:012d}" for number in (1, 2, 3)]
    true = json.loads((data[0].parent / "drawn" / "captions.json").read_text())["annotations"]
    for caption in captions:
        ordered = sorted((row for row in true if row["image_id"] == int(caption["key"])), key=lambda row: row["id"])
        assert caption["true"] == [row["caption"] for row in ordered]
        assert (
            f"image {caption['key']}\n      model: {caption['generated']}\n       true: {caption['true'][0]}\n"
            in run.output
        )


@pytest.mark.ranks
def test_a_checkpoint_holds_the_trained_model_and_its_words(runs):
    folder = runs("torchrun", "dispatch").checkpoint
    words = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))
    model = Captioner(Vocabulary(words[4:]))
    model.load_state_dict(load_file(folder / "model.safetensors"))
    assert model.vocabulary.words == words
    assert {"circle", "above", "red"} <= set(words)


@pytest.mark.ranks
@pytest.mark.shared
@pytest.mark.parametrize(("launcher", "mode"), [("torchrun", "dispatch"), ("accelerate", "shard")])
def test_two_ranks_train_on_the_real_images(real, tmp_path, launcher, mode):
    run = Run(launcher, mode, real, tmp_path, "--epochs", 1, "--image-size", 32)
    assert (run.status, run.errors) == (0, "")
    assert run.output.startswith(f"training on {RANKS} ranks")
    assert [epoch["rows"] for epoch in run.results["epochs"]] == [1001]
    assert len(run.results["captions"]) == 3


@pytest.fixture(scope="module")
def real(shared_data, tmp_path_factory):
    coco, out = shared_data / "coco", tmp_path_factory.mktemp("real") / "packed"
    assert pack(coco / "val2017", coco / "annotations" / "captions_val2017_found.json", out).returncode == 0
    return out


def test_one_process_trains_too_and_adds_up_gradients(data, tmp_path):
    options = ("--epochs", 1, "--image-size", 32, "--accumulate", 2, "--captions", "random", "--eval-samples", 1)
    run = run_tool("train_captioner.py", "--data", data[0], "--json", tmp_path / "results.json", *options)
    results = json.loads((tmp_path / "results.json").read_text())
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("training on 1 rank, rank 0 on cpu\n")
    assert results["epochs"][0]["rows"] == IMAGES
    assert len(results["captions"]) == 1


def test_data_that_are_not_there_are_an_error_in_one_line(tmp_path):
    run = run_tool("train_captioner.py", "--data", tmp_path / "nothing")
    assert run.returncode == 1
    assert run.stderr.startswith("train_captioner: ")
    assert f"{tmp_path}/nothing/manifest.json" in run.stderr
    assert len(run.stderr.splitlines()) == 1


def test_fewer_ranks_than_were_launched_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RanksError, match=r"started 2 processes, but 1 would train together; .*torchrun") as caught:
        check_ranks(SimpleNamespace(num_processes=1))
    assert (caught.value.launched, caught.value.ranks) == (2, 1)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "", "x", "²"])
def test_a_number_that_is_none_is_a_usage_error(text, capsys):
    with pytest.raises(SystemExit) as caught:
        parse(["--data", "x", f"--epochs={text}"])
    assert caught.value.code == 2
    assert f"argument --epochs: {text!r} is no whole number from 1 up" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0", "-1e-3", "nan", "inf", "x"])
def test_a_learning_rate_must_be_above_zero(text, capsys):
    with pytest.raises(SystemExit):
        parse(["--data", "x", f"--lr={text}"])
    assert "argument --lr: " in capsys.readouterr().err


def test_numbers_are_read_from_the_least_up():
    assert (whole(0)("0"), whole(8)("64")) == (0, 64)
