"""stream/stacks.py: what every thread is doing."""

import threading

from stream.stacks import all_stacks


def test_each_thread_is_named_with_the_function_that_it_is_in():
    go, there = threading.Event(), threading.Event()

    def here_it_waits():
        there.set()
        go.wait(20)

    thread = threading.Thread(target=here_it_waits, name="waiting-one")
    thread.start()
    assert there.wait(20)
    text = all_stacks()
    go.set()
    thread.join()
    after = text[text.index("Thread waiting-one:") :]
    assert "here_it_waits" in after
    assert "Thread MainThread:" in text
    assert "test_each_thread_is_named" in text
