"""Pictures of samples: annotations drawn on images, contact sheets, and thumbnails that a page holds.

Works on Pillow's images and NumPy arrays; knows neither data sets nor decoders.
"""
