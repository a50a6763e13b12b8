"""Mutations of small valid files: of any bytes, and of JSON by its structure."""

import json
from collections.abc import Sequence
from copy import deepcopy
from random import Random
from typing import Any

_INTEGERS = (
    0,
    1,
    -1,
    2,
    7,
    127,
    128,
    255,
    256,
    2**15,
    2**16 - 1,
    2**31 - 1,
    -(2**31),
    2**32 - 1,
    2**62,
    2**63 - 1,
)
# What parsers mistake: other types, numbers that are none, names that lead elsewhere, texts that no encoding has.
VALUES: tuple[Any, ...] = (
    None,
    True,
    "",
    [],
    {},
    [[]],
    [None],
    -0.0,
    1e308,
    float("nan"),
    float("-inf"),
    -(2**63),
    2**64,
    10**30,
    "0",
    "\0",
    "a\0b",
    "\n",
    "\ud800",
    "../../../tmp/x",
    "/etc/passwd",
    "C:\\x",
    "..\\x",
    "CON",
    "x" * 5000,
    *_INTEGERS,
)


def mutate_bytes(rng: Random, data: bytes, others: Sequence[bytes], tokens: Sequence[bytes] = ()) -> bytes:
    """One to four mutations: bits, bytes, integers, cuts, copies, splices with another file, and tokens."""
    mutated = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if not mutated:
            return bytes(mutated)
        offset = rng.randrange(len(mutated))
        match rng.randrange(9 if tokens else 8):
            case 0:
                mutated[offset] ^= 1 << rng.randrange(8)
            case 1:
                mutated[offset] = rng.randrange(256)
            case 2:
                size = rng.choice((1, 2, 4, 8))
                number = rng.choice(_INTEGERS) + rng.randrange(-2, 3)
                mutated[offset : offset + size] = (number % 256**size).to_bytes(size, rng.choice(("big", "little")))
            case 3:
                del mutated[offset : offset + rng.randrange(1, 20)]
            case 4:
                mutated[offset:offset] = rng.randbytes(rng.randrange(1, 20))
            case 5:
                mutated[offset:offset] = mutated[rng.randrange(len(mutated)) :][: rng.randrange(1, 200)]
            case 6:
                other = rng.choice(others)
                begin = rng.randrange(len(other) + 1)
                mutated[offset : offset + rng.randrange(60)] = other[begin : begin + rng.randrange(1, 200)]
            case 7:
                if rng.random() < 0.3:
                    del mutated[offset:]
                else:
                    mutated[offset] = rng.choice((0, 0xFF))
            case 8:
                mutated[offset : offset + rng.choice((0, 0, 1, 4, 8))] = rng.choice(tokens)
    return bytes(mutated)


def mutate_json(rng: Random, data: bytes) -> bytes:
    """A JSON document of which one to three values are others, are missing, or come twice."""
    tree = [json.loads(data)]
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = list(_places(tree))
        holder, key = rng.choice(places)
        match rng.randrange(6):
            case 0 | 1 | 2:
                # A later change must not change the table.
                holder[key] = deepcopy(rng.choice(VALUES))
            case 3:
                if holder is not tree:
                    del holder[key]
            case 4:
                if isinstance(holder, dict):
                    holder[str(rng.choice(VALUES))[:50]] = deepcopy(holder[key])
                elif holder is not tree:
                    holder.insert(key, deepcopy(holder[key]))
            case 5:
                other, place = rng.choice(places)
                if other is not tree and not isinstance(other[place], (dict, list)):
                    holder[key] = other[place]
                elif isinstance(holder[key], int):
                    holder[key] += rng.randrange(-3, 4)
    return json.dumps(tree[0]).encode("ascii")


def _places(tree: Any) -> Any:
    """Each container with each of its keys, from the top down."""
    stack = [tree]
    while stack:
        node = stack.pop()
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield node, key
            if isinstance(value, (dict, list)):
                stack.append(value)
