"""``tvm-edge rpc-server``."""

from __future__ import annotations

from pathlib import Path

import click

from tvm_edge.cli import options, printing


@click.command("rpc-server")
@click.option("--tracker", metavar="HOST:PORT", help="Register with this tracker, under --key.")
@click.option("--key", help="The kind of board, for example mali-t860.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. TVM's RPC has no passwords and no encryption: whoever reaches "
    "another address than localhost can run anything on this board. Use an SSH tunnel.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=9090,
    show_default=True,
    help="Port to listen on.",
)
@click.option(
    "--port-end",
    type=click.IntRange(2, 65536),
    help="The first free port before this one is taken; default only --port.",
)
@click.option(
    "--socket",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A Unix socket to listen on, for your own processes alone, in place of a port.",
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file with a secret, readable by you alone, that clients must prove to have. What is "
    "sent is not encrypted.",
)
@click.option(
    "--upload-limit",
    type=click.IntRange(min=1),
    metavar="MIB",
    default=1024,
    show_default=True,
    help="Most MiB that files which clients sent take.",
)
@options.json_option
def rpc_server_command(
    tracker: str | None,
    key: str | None,
    host: str,
    port: int,
    port_end: int | None,
    socket: Path | None,
    token_file: Path | None,
    upload_limit: int,
    as_json: bool,
) -> None:
    """Serve this board to tvm-edge on other machines, until Ctrl-C or SIGTERM.

    A server whose session crashes is started again, and registered with the tracker again; so is
    one whose tracker was started again.
    """
    from tvm_edge.rpc.server import BoardServer, ended_by_signals

    with (
        ended_by_signals(),
        BoardServer(
            host,
            port,
            port_end or port + 1,
            tracker=tracker,
            key=key,
            socket=socket,
            token_file=token_file,
            upload_bytes=upload_limit << 20,
        ) as server,
    ):
        info = server.describe()
        at = f"under the key {key} at the tracker {tracker}" if tracker else "without a tracker"
        data = {"address": server.address, "tracker": tracker, "key": key, **info.to_dict()}
        printing.emit(as_json, data, f"{info}\nserving on {server.address} {at}")
        server.run()
