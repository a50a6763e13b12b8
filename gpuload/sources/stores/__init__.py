"""Stores of other loaders: folders and files of records, read without the libraries that wrote them where formats are
plain, else by those that are small and kept. None is trusted: see `pieces`."""
