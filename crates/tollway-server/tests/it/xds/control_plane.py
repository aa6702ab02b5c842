"""A control plane by gRPC's own implementation, with TLS that asks for the client's certificate.

Writes its port, and then every request as hexadecimal digits, to standard output; sends what it is
given in the same form on standard input.
"""

import os
import queue
import sys
import threading
from concurrent import futures
from pathlib import Path

import grpc

PATH = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
pushes = queue.Queue()


def stream(requests, _context):
    def hear():
        try:
            for request in requests:
                print(request.hex(), flush=True)
        except grpc.RpcError:
            pass  # The client has left.

    threading.Thread(target=hear, daemon=True).start()
    while True:
        yield pushes.get()


class Handler(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.stream_stream_rpc_method_handler(stream) if details.method == PATH else None


folder = Path(sys.argv[1])
key, certificate, authority = (
    (folder / name).read_bytes() for name in ["server.key", "server.pem", "ca.pem"]
)
credentials = grpc.ssl_server_credentials(
    [(key, certificate)], root_certificates=authority, require_client_auth=True
)
server = grpc.server(futures.ThreadPoolExecutor(max_workers=4), handlers=[Handler()])
print(server.add_secure_port("127.0.0.1:0", credentials), flush=True)
server.start()
for line in sys.stdin:
    pushes.put(bytes.fromhex(line.strip()))
os._exit(0)
