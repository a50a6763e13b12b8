"""The fields of a sample: one object for each kind of field, from the source to the batch.

A kind (`gpuload.fields.kind`) defines how a value is read from a source, stored in a shard, moved with its image,
verified and requested; each kind is a class here and an entry in the registry. A spec such as `Boxes("boxes",
format="xywh")` is checked when it is bound to data sets; the bound field turns the rows of a batch into arrays.
Everything is NumPy code that works on a whole batch at once.
"""
