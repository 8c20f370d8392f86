"""Runs the Python that stands in docs/reference/protocol.md, as it stands there, and replays the vectors with it.

    python docs/reference/protocol_check.py               exit code 1 if anything differs

Needs the package `xxhash`. The vectors' lines are read by placement_check.py; what they ask is answered by the page's own functions.
"""

import json
import pathlib
import re
import sys

from placement_check import VECTORS, Ring, Replay, key_bytes

PAGE = pathlib.Path(__file__).resolve().parent / "protocol.md"
RECORDS = VECTORS.parent.parent / "discovery" / "testdata" / "records.json"
FILES = ("hashes.txt", "circles.txt", "fleets.txt", "quotas.txt")
# The page's plain steps would take too long for larger fleets, which placement_check.py places.
POINTS_HERE = 200_000


def protocol():
    """The names that the page's pieces of Python define."""
    pieces = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    names = {}
    exec(compile("\n".join(pieces), str(PAGE), "exec"), names)
    return names


def by_the_page(page):
    """A ring that is placed by the page."""

    class PageRing(Ring):
        def _place(self, members):
            return page["place"](members, self.slots, self.virtual_nodes, self.load_margin, self.quota)

    return PageRing


class PageReplay(Replay):
    """Answers hashes, slots and points by the page too."""

    def __init__(self, page):
        super().__init__()
        self.page = page

    def tell(self, line):
        super().tell(line)
        if type(self.ring) is Ring:
            self.ring.__class__ = by_the_page(self.page)

    def is_large(self):
        return self.ring is not None and self.ring.virtual_nodes * sum(w for _, w in self.ring.placed()) > POINTS_HERE

    def ask(self, question):
        point = re.fullmatch(r'point (\d+) "(.*)"', question)
        if point:
            data = point[2].encode() + int(point[1]).to_bytes(4, "little")
            return f"{self.page['xxh3'](data):016x}"
        hashed = re.fullmatch(r"hash (.*)", question)
        if hashed:
            return f"{self.page['xxh3'](key_bytes(hashed[1])):016x}"
        start = re.fullmatch(r"start (\d+) of (\d+)", question)
        if start:
            return f"{self.page['start_of'](int(start[1]), int(start[2])):016x}"
        slot = re.fullmatch(r"slot (.*) of (\d+)", question)
        if slot:
            return str(self.page["slot_of"](key_bytes(slot[1]), int(slot[2])))
        return super().ask(question)


def replay(page):
    """The vectors of the placement: how many agree, and what does not."""
    passed, wrong = 0, []
    for name in FILES:
        state = PageReplay(page)
        for line in (VECTORS / name).read_text(encoding="utf-8").split("\n"):
            question, arrow, expected = line.partition(" => ")
            if not line or line.startswith("#"):
                continue
            if not arrow:
                state.tell(line)
            elif state.is_large():
                continue
            elif state.ask(question) == expected:
                passed += 1
            else:
                wrong.append(f"{name}: {question}\n  computed {state.ask(question)}\n  written  {expected}")
    return passed, wrong


def records(page):
    """The same for records."""
    passed, wrong = 0, []

    def compare(what, computed, written):
        nonlocal passed
        if computed == written:
            passed += 1
        else:
            wrong.append(f"{RECORDS.name}: {what}\n  computed {computed}\n  written  {written}")

    vectors = json.loads(RECORDS.read_text(encoding="utf-8"))
    for case in vectors["fingerprints"]:
        given = {name: value for name, value in case.items() if name != "is"}
        compare(given, page["fingerprint"](**given), case["is"])
    asked = [vectors["owners"][name] for name in ("slots", "virtual_nodes", "load_margin_thousandths")]
    keys = vectors["owners"]["keys"]
    for case in vectors["views"]:
        told = [(m["id"], m["joined"], m["record"]) for m in case["members"]]
        try:
            view = page["view_of"]([page["read_record"](*each) for each in told])
            compare(f"{case['why']}: group", page["group_fingerprint"](view), case["group"])
            compare(f"{case['why']}: placed", [list(member) for member in page["placed"](view)], case["placed"])
            for placement in ("ring", "quota"):
                owners = [page["owner_of"](key.encode(), told, *asked, placement == "quota") for key in keys]
                compare(f"{case['why']}: owners by {placement}", owners, case[placement])
        except ValueError:
            compare(f"{case['why']}: unreadable", [None] * 3, [case[name] for name in ("placed", "ring", "quota")])
    return passed, wrong


def proofs(page):
    """The same for the proofs and records of a connection; src/requests/channel/proof.rs and src/requests/channel/seal/tests.rs have the same numbers."""
    member = (b"members-know-this-one", "workers", "worker-1", 7)
    key = page["connection_key"](*member, b"\x11" * 32, b"\x22" * 32)
    binding = b"\x33" * 32
    pairs = [
        (page["welcome"](key), "822838c16b1f03bc245215ce9f9ed45f6578b99ba161d07bf1c2f3f7dba89c91"),
        (page["confirmation"](key), "810c76c4417fa3ba66be866f2ad8302e9aa56ec696eaae7e402e07992b85acf4"),
        (page["welcome"](key, binding), "6b92dab8483a58c05c1b79a8c577b5c69d955dd45423df7a8c5162d13d2f56ec"),
        (page["confirmation"](key, binding), "66c77e206d8f5c44eda5e8866ff89ce004bbf1f5017f62fcd7159a4c34fd1099"),
        (
            page["record"](key, "question", 0, b"ask"),
            "000000032ddd34fd0120b373d016ab6b229567da4140f0971f8d84f7d4097c2364b7866b61736b",
        ),
        (
            page["record"](key, "question", 1, b"again"),
            "000000055560aa9dd8857b72e4db37a6f68ba609f7b45fdf51ed76438c47fc15a974acbc616761696e",
        ),
        (
            page["record"](key, "answer", 0, b"ok"),
            "000000021a8a11ff7bc5ccdbe0692bb06c9a3e8931558deef57f74dc5329878ff03190646f6b",
        ),
    ]
    wrong = [f"proofs:\n  computed {one.hex()}\n  written  {other}" for one, other in pairs if one.hex() != other]
    return len(pairs) - len(wrong), wrong


def main():
    page = protocol()
    results = [replay(page), records(page), proofs(page)]
    passed, wrong = sum(each[0] for each in results), [line for each in results for line in each[1]]
    for each in wrong:
        print(each)
    print(f"{passed} vectors passed, {len(wrong)} failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
