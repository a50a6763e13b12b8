// The arguments of the kernels that make views from decoded pixels, for RGB and for other pixels.

#pragma once

#include "picture.h"

// A region of each image to the size of the output, antialiased. Nothing is done for a picture that is not decoded.
typedef struct {
    const Picture *pictures;
    const Window *windows;  // in the stored image: the pixels that the filter may use
    const Region *regions;  // in the stored image: what becomes the output
    const Flips *flips;
    int64_t cubic;          // bicubic, else bilinear
    const Bands *bands;     // NULL: RGB
    OutputMemory output;
} ResizeArguments;

// A window of each image, as large as the output, with padding outside of the image.
typedef struct {
    const Picture *pictures;  // which hold what is shown of the images
    const Window *windows;
    const Flips *flips;
    const Size *sizes;        // of the stored images
    const void *fill;         // outside: of RGB three uint8, else a double
    int64_t padding_mode;     // index in gpuload.augment.crops.PADDING_MODES
    const Bands *bands;       // NULL: RGB
    OutputMemory output;
} CropArguments;

EXPORT int64_t resize_rgb(const ResizeArguments *resize, int64_t begin, int64_t end);
EXPORT int64_t resize_bands(const ResizeArguments *resize, int64_t begin, int64_t end);
EXPORT int64_t crop_or_pad_rgb(const CropArguments *crop, int64_t begin, int64_t end);
EXPORT int64_t crop_or_pad_bands(const CropArguments *crop, int64_t begin, int64_t end);
