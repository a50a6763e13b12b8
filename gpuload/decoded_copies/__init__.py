"""Copies of packed sets with decoded images, which all processes of a node share.

A copy is a packed set of raw images, one shard for each shard of the set that it was made of, with the same samples in
the same places. So all else, from the order to the batch, is as for any set.
"""
