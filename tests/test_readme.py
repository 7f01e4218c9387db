"""Every block of README.md runs, in its order, in one folder; its tables and lists are true."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import shards
import stream
from coco_cases import draw

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
QUICK = {  # what takes minutes in earnest runs with these instead
    "--prefetch 2,4,8": "--prefetch 2",
    "--workers 0,1,2": "--workers 0",
    "--pin-memory on,off": "--pin-memory off --seconds 0.2 --repeats 1 --warmup 0.1 --rows 96 --batch-size 12",
    "--ranks 2": "--ranks 2 --image-size 32",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder as the README sees it: the clone's programs, and COCO as it is unpacked."""
    place = tmp_path_factory.mktemp("readme")
    for room in ("tools", "benchmarks"):
        (place / room).symlink_to(ROOT / room)
    images, captions = draw(place / "drawn", images=30)
    (place / "coco" / "annotations").mkdir(parents=True)
    shutil.move(images, place / "coco" / "val2017")
    shutil.move(captions, place / "coco" / "annotations" / "captions_val2017.json")
    return place


def run(command: str, folder: Path) -> str:
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-euc", command],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
        start_new_session=True,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def test_there_are_blocks_of_both_kinds():
    assert {kind for kind, _ in BLOCKS} == {"bash", "python", "text"}


def test_the_blocks_run_in_their_order(folder):
    for kind, text in BLOCKS:
        if kind == "python":
            name = text.partition("\n")[0].removeprefix("# ")
            (folder / name).write_text(text)
            said = run(f"python {name}", folder)
        elif kind == "text" or text.startswith("make "):
            continue  # see test_the_make_commands_exist and test_what_describe_says_is_what_it_says
        else:
            said = run(quick(text), folder)
        assert said, text
    assert (folder / "grid.png").stat().st_size > 1000


def test_what_describe_says_is_what_it_says(folder):
    """The words of the lines, that is: the numbers are those of the real images."""
    if not (folder / "coco-val").exists():  # where this test is run by itself
        [pack] = [text for _, text in BLOCKS if text.startswith("python tools/pack_coco.py")]
        run(pack, folder)
    [shown] = [text for kind, text in BLOCKS if kind == "text"]
    script = """
from accelerate import Accelerator, DataLoaderConfiguration
from stream import StreamLoader
config = DataLoaderConfiguration(dispatch_batches=True, split_batches=True)
accelerator = Accelerator(cpu=True, dataloader_config=config)
loader = accelerator.prepare(StreamLoader("coco-val", accelerator=accelerator, batch_size=24, image_size=64))
next(iter(loader))
accelerator.print(loader.describe())
accelerator.end_training()
"""
    (folder / "describe.py").write_text(script)
    said = run("torchrun --standalone --nproc_per_node 2 describe.py", folder)
    told, wanted = ([re.sub(r"\d[\d,]*|/\S+/", "N", line) for line in text.splitlines()] for text in (said, shown))
    assert [line for line in wanted if line not in told] == []


def quick(command: str) -> str:
    for long, short in QUICK.items():
        command = command.replace(long, short)
    return command


def test_the_make_commands_exist():
    """They install, and one of them runs this very test: here they are only planned."""
    commands = [
        line.split("#")[0].strip() for _, text in BLOCKS for line in text.splitlines() if line.startswith("make ")
    ]
    assert commands == ["make demo", "make test"]
    for command in commands:
        assert "tools/demo.py" in (plan := run(f"{command} --dry-run", ROOT)) or "pytest" in plan


@pytest.mark.parametrize(("package", "module"), [("stream", stream), ("shards", shards)])
def test_the_names_are_those_of_the_front_door(package, module):
    listed = README.partition(f"`from {package} import ...`:")[2].partition(".\n")[0].partition(". Importing")[0]
    assert re.findall(r"`(\w+)`", listed) == module.__all__


@pytest.mark.parametrize("package", ["webdataset", "fsspec", "s3fs", "accelerate", "torch", "pillow", "msgspec"])
def test_the_readme_says_where_a_package_is_used(package):
    (row,) = re.findall(rf"^\| {package} \| (.*?) \|", README, flags=re.MULTILINE)
    if package == "s3fs":  # never imported by name: fsspec does
        assert "behind fsspec" in row
        return
    places = [ROOT / path for path in re.findall(r"`([\w/.]+)`", row)]
    assert places
    imported = re.compile(rf"^\s*(from|import) {'PIL' if package == 'pillow' else package}\b", flags=re.MULTILINE)
    for place in places:
        files = [place] if place.is_file() else list(place.glob("*.py"))
        assert any(imported.search(path.read_text()) for path in files), place


def test_the_mode_table_has_at_most_six_rows():
    table = README.partition("| source | shuffle |")[2].partition("\n\n")[0]
    assert 1 <= len(table.strip().splitlines()) - 2 <= 6


def test_the_files_that_are_linked_exist():
    for target in re.findall(r"\]\((?!https?://)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_grid_is_that_of_the_committed_run():
    run_of = json.loads((ROOT / "benchmarks" / "results" / "3-grid.json").read_bytes())
    medians = {tuple(row["config"][name] for name in ("mode", "workers", "prefetch")): row for row in run_of["rows"]}
    lines = re.findall(r"^\| (dispatch|shard) \| (\d) \| (.*) \|$", README, flags=re.MULTILINE)
    assert len(lines) == 4
    for mode, workers, cells in lines:
        for prefetch, shown in zip((2, 8), cells.split(" | "), strict=True):
            row = medians[mode, int(workers), prefetch]
            figure = f"{row['samples_per_s']['median']:.0f}"
            marked = f"**{figure}**" if row["best"] else figure
            assert shown == marked + "\\*" * row["common_advice"]


def test_the_speed_of_the_transport_is_that_of_the_log():
    log = (ROOT / "benchmarks" / "results" / "3.md").read_text()
    found = {
        (pixels, ranks, way): figure
        for way, pixels, ranks, figure in re.findall(
            r"^\| (stock|scatter|ours) +\| (float32|uint8) +\| +(\d) \| +([\d,]+) \|", log, flags=re.MULTILINE
        )
    }
    rows = re.findall(r"^\| (float32|uint8), (\d) \| (.*) \| (.*) \| ([\d,]+) ", README, flags=re.MULTILINE)
    assert len(rows) == 4
    for pixels, ranks, *figures in rows:
        assert figures == [found[pixels, ranks, way] for way in ("stock", "scatter", "ours")]
