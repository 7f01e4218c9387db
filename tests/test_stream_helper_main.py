"""stream/helper_main.py: the program by itself, as another program would talk to it."""

import os
import socket
import subprocess
import sys

import numpy as np
import pytest

from helpers_made import is_there, memory_file
from pictures import JPEG, encoded, in_a_new_process, picture
from stream.decode import decode
from stream.errands import OWN_INPUT, AddFile, AddLane, Decode, Decoded, Done, Failed, Read, Setup, answer, mapped, post

pytestmark = pytest.mark.timeout(60)


class Program:
    """The program, its control connection and one lane."""

    def __init__(self, setup):
        self.control, theirs = socket.socketpair()
        command = [sys.executable, "-m", "stream.helper_main", str(theirs.fileno())]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()
        self.lane, lane = socket.socketpair()
        self.output, self.input = self.files = [memory_file()[0] for _ in range(2)]
        post(self.control, setup)
        post(self.control, AddLane(), [lane.fileno(), self.output, self.input])
        lane.close()

    def ask(self, message):
        post(self.lane, message)
        return answer(self.lane)

    def close(self):
        self.control.close()
        self.lane.close()
        for fd in self.files:
            os.close(fd)
        self.files = []
        return self.process.wait(10)


@pytest.fixture
def program():
    program = Program(Setup(2, 10**6, None))
    yield program
    program.close()


def test_the_end_of_the_control_connection_ends_it_with_status_0(program):
    program.ask(Decode(1, [], 0))
    assert is_there(program.process.pid)
    assert program.close() == 0


def test_what_a_job_needs_of_the_control_connection_is_waited_for(program):
    fd, _ = memory_file(JPEG)
    post(program.lane, Decode(2, [("a", 1, 0, len(JPEG))], 0))
    post(program.control, AddFile(1, writable=False), [fd])
    os.close(fd)
    told = answer(program.lane)
    assert isinstance(told, Decoded)
    assert told.sizes == [(40, 60)]
    pixels = mapped(program.output, writable=False)
    assert pixels.size == told.file_bytes
    assert np.array_equal(pixels[: 40 * 60 * 3].reshape(40, 60, 3), decode(JPEG, name="a"))


def test_images_lie_one_after_another_in_a_file_that_grows_and_never_shrinks(program):
    images = [encoded(picture(3, 5), "PNG"), encoded(picture(700, 900), "PNG"), encoded(picture(2, 2), "PNG")]
    for count in (1, 3, 2):
        os.pwrite(program.input, b"".join(images), 0)
        starts = np.cumsum([0, *map(len, images)]).tolist()
        jobs = [("a", OWN_INPUT, starts[n], len(images[n])) for n in range(count)]
        told = program.ask(Decode(1, jobs, starts[-1]))
        pixels = mapped(program.output, writable=False)
        expected = np.concatenate([decode(data, name="a").ravel() for data in images[:count]])
        assert np.array_equal(pixels[: expected.size], expected)
    assert told.file_bytes == pixels.size >= 700 * 900 * 3


def test_a_failure_that_no_image_is_to_blame_for_comes_with_its_traceback(program):
    told = program.ask(Read(1, [("/absent/a.tar", [(0, 1)], 5, 0)]))
    assert isinstance(told, Failed)
    assert told.kind == "other"
    assert "Traceback" in told.words[0]


def test_an_error_answers_and_the_lane_goes_on(program):
    assert isinstance(program.ask(Decode(1, [("a", OWN_INPUT, 0, 5)], 0)), Failed)
    assert program.ask(Read(1, [])) == Done()


def test_a_helper_that_does_not_resize_never_loads_a_tensor_library():
    loaded = in_a_new_process(
        "import sys, stream.helper_main; print({'torch', 'PIL', 'accelerate'} & set(sys.modules))"
    )
    assert loaded.strip() == "set()"
