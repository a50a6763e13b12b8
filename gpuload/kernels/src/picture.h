// What kernels are told about images, and where they write. Python has the same structures in gpuload/kernels/structs.py;
// a test compares the fields.

#pragma once

#include "common.h"

// Bytes in memory, such as those of a file.
typedef struct {
    const uint8_t *bytes;
    int64_t size;
} Span;

// The decoded pixels of an image, whole or in part.
typedef struct {
    const uint8_t *pixels;  // NULL: not decoded
    int64_t height, width;  // of the pixels
    int64_t stride;         // bytes from row to row
    int64_t top, left;      // where the first pixel lies in the stored image
    int64_t factor;         // pixels of the stored image, along each side, that make one of these
} Picture;

typedef struct {
    int64_t top, left, bottom, right;
} Window;

typedef struct {
    double top, left, bottom, right;
} Region;

typedef struct {
    int64_t height, width;
} Size;

typedef struct {
    uint8_t vertical, horizontal;
} Flips;

// Pixels that are not 8-bit RGB.
typedef struct {
    int64_t value_bytes;  // 1: uint8, 2: uint16, 4: float32
    int64_t channels;     // that are needed
    int64_t step;         // values from one pixel to the next
    int64_t peak;         // the largest value, to which integers are clamped
    int64_t luma;         // whether the single channel is computed from RGB
} Bands;

// A batch's memory: images of `height` × `width`, written as (level - mean) * factor.
typedef struct {
    uint8_t *values;
    int64_t height, width;
    int64_t planar;       // (channels, height, width), else (height, width, channels)
    int64_t floats;       // float32, else uint8: the levels themselves
    const float *mean;    // of each channel
    const float *factor;
} OutputMemory;

static inline int64_t value_bytes(const OutputMemory *output) { return output->floats ? 4 : 1; }
