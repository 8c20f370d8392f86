"""A Django management command that works on the tenants that this worker holds: copy it to `management/commands/remind.py` of your app.

    python manage.py remind --policy my_custom_workers --tenants tenants.txt

It runs beside `shardwise serve` with a policy of `ownership = "exclusive"`. Start it on as many machines as you like, each with its sidecar: each
tenant is worked on by one of them. Replace `tenants` and `remind` by yours. It also runs without Django: `python django_command.py --policy P ...`.
"""

import argparse
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from shardwise_client import Lost, NotHeld, ShardwiseError
from shardwise_client.sync import Client, Entered

try:
    from django.core.management.base import BaseCommand
except ImportError:

    class BaseCommand:  # type: ignore[no-redef]
        """The little of Django's that is used here."""

        stdout = sys.stdout


class Command(BaseCommand):  # type: ignore[misc,unused-ignore]
    help = "Sends reminders for the tenants that this worker holds."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--policy", required=True)
        parser.add_argument("--url", default="http://127.0.0.1:8087", help="the sidecar")
        parser.add_argument("--tenants", required=True, type=Path, help="a file with one tenant a line")
        parser.add_argument("--rounds", type=int, default=0, help="end after so many rounds; 0: at SIGTERM")
        parser.add_argument("--pause", type=float, default=1.0, help="seconds between two rounds")

    def handle(self, *_: object, **options: Any) -> None:
        stopped = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopped.set())
        # The client has a thread, so it is made here and not when the module is loaded: threads do not survive a fork.
        with Client(options["policy"], options["url"], token=os.environ.get("SHARDWISE_TOKEN")) as client, client.lease() as lease:
            rounds = 0
            while not stopped.is_set():
                for tenant in lease.owned(self.tenants(options["tenants"])):
                    if stopped.is_set():
                        break
                    try:
                        with lease.enter(tenant) as entered:
                            self.remind(tenant, entered)
                    except (NotHeld, Lost) as moved:
                        # Another worker has it now, or will soon.
                        self.stdout.write(f"{moved}\n")
                rounds += 1
                if rounds == options["rounds"]:
                    break
                stopped.wait(options["pause"])

    def tenants(self, file: Path) -> list[str]:
        """Stands for `Tenant.objects.values_list("name", flat=True)`."""
        return [line for line in file.read_text(encoding="utf-8").split("\n") if line]

    def remind(self, tenant: str, entered: Entered) -> None:
        """Long work calls `entered.check()` between its steps. Writes to the database carry the fence: docs/reference/fencing.md has the statement."""
        entered.check()
        slot, epoch = entered.fence
        self.stdout.write(f"reminded {tenant} under slot {slot}, epoch {epoch}\n")
        self.stdout.flush()


def main() -> None:
    command, parser = Command(), argparse.ArgumentParser(description=Command.help)
    command.add_arguments(parser)
    try:
        command.handle(**vars(parser.parse_args()))
    except ShardwiseError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
