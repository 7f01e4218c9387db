"""tools/crew.py: verdicts in order from several processes, and no process that outlives the crew."""

import os
import signal
from pathlib import Path

import pytest
from xxhash import xxh3_64_intdigest

from coco_cases import SIZE, draw
from crew import Crew
from images import FolderSource
from pack_errors import WorkerDiedError
from verdict import Settings, Task


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("drawn"), images=8)[0]


def tasks(folder):
    source = FolderSource(str(folder))
    names = sorted(path.name for path in folder.iterdir())
    return [Task(name, source.find(name), *SIZE) for name in names]


def settings(folder):
    return Settings(str(folder), None)


def pids(crew):
    return [worker._process.pid for worker in crew._workers]


def digests(run):
    return [xxh3_64_intdigest(Path(task.place.name).read_bytes()) for task in run]


@pytest.mark.parametrize("workers", [1, 3])
def test_verdicts_come_in_the_order_of_the_runs(folder, workers):
    every = [task for task in tasks(folder) if verdict_is_good(folder, task)]
    runs = [[every[number % len(every)]] * (1 + 20 * (number % 3 == 0)) for number in range(40)]
    with Crew(workers, settings(folder)) as crew:
        found = [[verdict.digest for verdict in verdicts] for verdicts in crew.verdicts(runs)]
    assert found == [digests(run) for run in runs]


def verdict_is_good(folder, task):
    """A fifth of the drawn images is turned, so their records would not fit."""
    from PIL import Image

    with Image.open(folder / task.file_name) as image:
        return image.size == SIZE


def test_no_runs_give_no_verdicts(folder):
    with Crew(2, settings(folder)) as crew:
        assert list(crew.verdicts([])) == []


def test_the_crew_reads_runs_only_a_bounded_way_ahead(folder):
    taken = []

    def runs():
        for number in range(100):
            taken.append(number)
            yield tasks(folder)[:1]

    with Crew(2, settings(folder)) as crew:
        for done, _ in enumerate(crew.verdicts(runs()), start=1):
            assert len(taken) <= done + 8


def test_an_image_that_cannot_be_read_has_a_verdict(folder):
    gone = Task("gone.jpg", tasks(folder)[0].place._replace(name=str(folder / "gone.jpg")), *SIZE)
    with Crew(1, settings(folder)) as crew:
        ((verdict,),) = crew.verdicts([[gone]])
    assert verdict.problem == "it cannot be opened (No such file or directory)"


def test_runs_with_very_long_names_pass(folder):
    long = Task("x" * 10_000, tasks(folder)[0].place, *SIZE)
    with Crew(1, settings(folder)) as crew:
        assert len(list(crew.verdicts([[long] * 32] * 6))) == 6


def test_a_killed_process_is_an_error_that_names_its_images(folder):
    run = tasks(folder)
    with Crew(2, settings(folder)) as crew:
        verdicts = crew.verdicts([run] * 1000)
        next(verdicts)
        os.kill(pids(crew)[1], signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match=r"killed by signal 9 \(SIGKILL\)") as caught:
            list(verdicts)
    assert caught.value.names == tuple(task.file_name for task in run)


def test_a_process_that_cannot_start_its_work_is_an_error(tmp_path, capfd):
    with Crew(1, settings(tmp_path / "nothing")) as crew, pytest.raises(WorkerDiedError, match="ended with status 1"):
        list(crew.verdicts([[]]))
    assert "does not exist" in capfd.readouterr().err


@pytest.mark.parametrize("read", [0, 2])
def test_no_process_outlives_the_crew(folder, read):
    with Crew(2, settings(folder)) as crew:
        alive = pids(crew)
        verdicts = crew.verdicts([tasks(folder)] * 100)
        for _ in range(read):
            next(verdicts)
        assert all(Path(f"/proc/{pid}").exists() for pid in alive)
    assert not any(Path(f"/proc/{pid}").exists() for pid in alive)


def test_processes_end_when_their_packer_is_killed(folder):
    crew = Crew(1, settings(folder))
    worker = crew._workers[0]
    worker._input.close()  # what the kernel does to a killed packer's pipes
    assert worker._process.wait(timeout=60) == 0
    crew.end()
    crew.end()
