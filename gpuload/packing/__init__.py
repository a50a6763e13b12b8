"""Packs a source into shards: first a plan (numbers only), then workers that carry it out, one shard at a time.

`packer.pack` is the entry point; `index.index_shards` indexes shards that other tools packed, and `verify.verify` reads
all of a set again.
"""
