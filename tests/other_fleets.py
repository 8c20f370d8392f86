"""Answers for the tests what Python says: the node of a key by uhashring, and the member by FNV-1a and modulo.

A line is JSON: {"members": [[id, weight], ..], "keys": [..]}. The answer is a line with two lists of positions among the members, which come
sorted by id: by uhashring, and by modulo.
"""

import json
import sys

from uhashring import HashRing


def fnv1a(text):
    hash = 0x811C9DC5
    for byte in text.encode("utf-8"):
        hash = (hash ^ byte) * 0x01000193 & 0xFFFFFFFF
    return hash


for line in sys.stdin.buffer:
    asked = json.loads(line)
    members = asked["members"]
    position = {id: at for at, (id, _) in enumerate(members)}
    plain = all(weight == 1 for _, weight in members)
    ring = HashRing([id for id, _ in members]) if plain else HashRing({id: weight for id, weight in members})
    uhashring = [position[ring.get_node(key)] for key in asked["keys"]]
    modulo = [fnv1a(str(key)) % len(members) for key in asked["keys"]]
    sys.stdout.write(json.dumps([uhashring, modulo]) + "\n")
    sys.stdout.flush()
