import socket

from tcp_bytes import tcp_received_bytes


def test_bytes_over_tcp_are_counted_and_others_are_not():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as near:
        far, _ = server.accept()
        with far:
            before = tcp_received_bytes()
            near.sendall(bytes(100_000))
            received = 0
            while received < 100_000:
                received += len(far.recv(65_536))
            assert tcp_received_bytes() - before == 100_000
    left, right = socket.socketpair()
    with left, right:
        before = tcp_received_bytes()
        left.sendall(bytes(1000))
        assert tcp_received_bytes() == before


def test_looking_closes_no_connection():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as near:
        far, _ = server.accept()
        with far:
            tcp_received_bytes()
            near.sendall(b"x")
            assert far.recv(1) == b"x"
