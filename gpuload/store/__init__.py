"""Where packed sets lie: URLs, and the shards of a set, in a local folder or downloaded into a cache.

Decoders read shards from memory maps, so that every store gives them local files: those of a folder, or those of the
cache, which are downloaded before they are needed.
"""
