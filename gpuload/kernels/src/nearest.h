// Views whose values are taken as they are stored, from the nearest pixel: masks, depth, and other maps.

#pragma once

#include "picture.h"

// A region of each image, to its output. Nothing is done for a picture that is not decoded.
typedef struct {
    const Picture *pictures;
    const Size *starts;      // top and left of each window, in the stored image
    const Size *shapes;      // of each window
    const Region *regions;   // counted from the window's corner: what becomes the output
    const Flips *flips;
    const Size *sizes;       // of the stored images
    const Size *outputs;     // of each output, in the upper left corner of its frame
    const void *fill;        // a value of the output: outside of the image and of the output
    const void *table;       // what each stored number of 1 or 2 bytes becomes; NULL: itself
    int64_t padding_mode;    // index in gpuload.augment.crops.PADDING_MODES of what is outside of the image
    int64_t within_windows;  // whether pixels beyond the window's edges are those at its edges
    int64_t value_bytes;     // of a stored number, 1, 2 or 4
    int64_t entry_bytes;     // of one in the table, 1, 4 or 8
    int64_t channels;
    int64_t step;            // values from one pixel to the next
    uint8_t *values;         // (images, channels, height, width)
    uint8_t *inside;         // (images, height, width): 255 where a value is of the image, else 0; NULL: not asked for
    int64_t height, width;   // of a frame
} NearestArguments;

EXPORT int64_t pick_nearest(const NearestArguments *pick, int64_t begin, int64_t end);
