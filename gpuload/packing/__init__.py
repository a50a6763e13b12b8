"""Packs a source into shards: first a plan (numbers only), then workers that carry it out, one shard at a time.

`run.packer.pack` is the entry point; `foreign.index.index_shards` indexes shards that other tools packed.
"""
