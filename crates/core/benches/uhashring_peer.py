"""What a key costs Python's uhashring, for the benchmark `peers`: list, members and nanoseconds a key, with tabs between.

Called with the file of words; `cargo xtask bench peers` does it.
"""

import sys
import time

from uhashring import HashRing

KEYS = 20_000
FLEETS = (3, 16, 256, 1_000)
RUNS = 5


def lists(words):
    yield "ids of 15 bytes", [f"tenant-{i:08}" for i in range(KEYS)]
    yield "UUIDs as text", [f"{i * 2_654_435_761 % 2**32:08x}-5a1f-4d0e-9b7c-{i:012x}" for i in range(KEYS)]
    yield "URLs of 200 bytes", [f"https://example.com/{i:0>180}" for i in range(KEYS)]
    with open(words, encoding="utf-8") as file:
        every = file.read().splitlines()
    # Words of all beginnings.
    yield "words", every[:: max(1, len(every) // KEYS)][:KEYS]


def main():
    rings = {members: HashRing([f"worker-{i}" for i in range(members)]) for members in FLEETS}
    for name, keys in lists(sys.argv[1]):
        for members, ring in rings.items():
            fastest = float("inf")
            for _ in range(RUNS):
                begun = time.perf_counter_ns()
                mine = [key for key in keys if ring.get_node(key) == "worker-0"]
                fastest = min(fastest, time.perf_counter_ns() - begun)
                assert mine or members > 16
            print(name, members, fastest / len(keys), sep="\t")


if __name__ == "__main__":
    main()
