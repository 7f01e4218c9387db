"""stream/helper_process.py: how a helper ends, and that nobody else keeps it alive."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from helpers_made import is_gone, is_reaped, is_there, stop
from pictures import JPEG, encoded, picture
from stream.errors import DecodeError
from stream.helper import DecodeHelper
from stream.helper_process import HelperError

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def helper():
    helper = DecodeHelper(resize=None, threads=1)
    helper.decode_encoded([("a", JPEG)])
    yield helper
    helper.close()


def ask_in_a_thread(helper, images):
    """A thread that asks, and the list that gets what it raised."""
    raised = []

    def ask():
        try:
            helper.decode_encoded(images)
        except HelperError as exc:
            raised.append(exc)

    thread = threading.Thread(target=ask, name="stream-test")
    thread.start()
    return thread, raised


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_killed_helper_is_an_error_that_names_the_signal(helper, number):
    os.kill(helper.pid, number)
    assert is_gone(helper.pid)
    for _ in range(2):
        with pytest.raises(HelperError, match=f"was killed by signal {number}, {number.name}"):
            helper.decode_encoded([("a", JPEG)])


def test_a_helper_that_exits_is_an_error_that_names_the_status(monkeypatch):
    monkeypatch.setattr("stream.helper_process._PROGRAM", "raise SystemExit(3)")
    helper = DecodeHelper(resize=None, threads=1)
    with pytest.raises(HelperError, match="exited with status 3"):
        helper.decode_encoded([("a", JPEG)])
    helper.close()


def test_a_helper_that_is_killed_while_it_decodes_wakes_who_waits(helper):
    stop(helper.pid)
    thread, raised = ask_in_a_thread(helper, [("a", JPEG)])
    time.sleep(0.1)
    os.kill(helper.pid, signal.SIGKILL)
    thread.join(10)
    assert not thread.is_alive()
    assert "SIGKILL" in str(raised[0])


def test_close_wakes_who_waits_and_ends_even_a_stopped_helper(helper):
    pid = helper.pid
    stop(pid)
    thread, raised = ask_in_a_thread(helper, [("a", JPEG)])
    time.sleep(0.1)
    helper.close()
    thread.join(10)
    assert not thread.is_alive()
    assert "was closed" in str(raised[0])
    assert is_reaped(pid)


def test_a_parent_that_is_killed_takes_its_helper_along():
    program = """
        import sys, time
        from stream.helper import DecodeHelper
        helper = DecodeHelper(resize=None, threads=1)
        helper.decode_encoded([])
        print(helper.pid, flush=True)
        time.sleep(60)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True) as job:
        pid = int(job.stdout.readline())
        assert is_there(pid)
        job.kill()
        job.wait(10)
        assert is_gone(pid)


def test_a_parent_that_ends_without_closing_takes_its_helper_along_and_says_nothing():
    program = """
        from stream.helper import DecodeHelper
        helper = DecodeHelper(resize=None, threads=1)
        helper.decode_encoded([])
        print(helper.pid)
    """
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (0, "")
    assert is_gone(int(done.stdout))


def test_ctrl_c_is_for_the_process_that_started_the_helper(helper):
    os.kill(helper.pid, signal.SIGINT)
    assert len(helper.decode_encoded([("a", JPEG)])) == 1


def test_a_forked_child_does_not_keep_the_helper_alive_and_gets_its_own():
    helper = DecodeHelper(resize=None, threads=1)
    helper.decode_encoded([("a", JPEG)])
    told, tell = os.pipe()
    stop, stopped = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(stopped)
            (image,) = helper.decode_encoded([("a", JPEG)])
            os.write(tell, f"{helper.pid} {tuple(image.shape)}".encode())
            os.read(stop, 1)
        finally:
            os._exit(0)
    os.close(tell)
    os.close(stop)
    own, shape = os.read(told, 100).decode().split(" ", 1)
    pid = helper.pid
    os.kill(pid, 0)
    assert shape == "(40, 60, 3)"
    assert int(own) != pid
    helper._own().running._control.close()  # as if this process had ended
    assert is_gone(pid)
    os.close(stopped)
    os.waitpid(child, 0)
    assert is_gone(int(own))
    os.close(told)
    helper.close()


def test_the_folder_a_user_works_in_does_not_come_first(tmp_path, monkeypatch):
    (tmp_path / "stream.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    helper = DecodeHelper(resize=None, threads=1)
    assert len(helper.decode_encoded([("a", JPEG)])) == 1
    helper.close()


def test_a_lane_keeps_no_memory_that_is_out_of_proportion(helper, monkeypatch):
    monkeypatch.setattr("stream.helper_process._KEPT_BYTES", 2 * 2**20)
    large = encoded(picture(1000, 1000), "PNG")
    helper.decode_encoded([("a", large)])
    (lane,) = helper._own().running._idle
    assert lane.held() >= 3_000_000
    helper.decode_encoded([("a", JPEG)])
    assert helper._own().running._idle == []
    helper.decode_encoded([("a", JPEG)])
    (lane,) = helper._own().running._idle
    assert lane.held() < 2 * 2**20


def test_a_lane_whose_answer_did_not_come_is_never_used_again(helper, monkeypatch):
    def interrupted(_sock):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("stream.helper_process.answer", interrupted)
        with pytest.raises(KeyboardInterrupt):
            helper.decode_encoded([("broken", b"")])
    assert len(helper.decode_encoded([("a", JPEG)])) == 1
    with pytest.raises(DecodeError, match="other"):
        helper.decode_encoded([("other", b"")])
