// Augmentations of pixels: what the steps of gpuload.transforms.ops.Op do to an image of levels.
//
// The names and the arithmetic are those of torchvision.transforms.v2.functional for uint8, float operations included:
// each is rounded as it is written.

#pragma once

#include "picture.h"

// The codes of gpuload.transforms.ops.Op; a test compares them.
enum Op {
    NOTHING, BRIGHTNESS, CONTRAST, SATURATION, HUE, GRAYSCALE, GAUSSIAN_BLUR, SOLARIZE, POSTERIZE, AUTOCONTRAST, EQUALIZE,
    INVERT, SHARPNESS, AFFINE, WARP_NEAREST, WARP_BILINEAR, AFFINE_BILINEAR, SOLARIZE_ADD, KEEP, MIX, MIXED, OPS,
};
enum {
    STEP_NUMBERS = 12,   // numbers that a step takes, at most
    MATRIX_NUMBERS = 9,  // those of a warp's matrix; its fill follows
    MOST_ARGUMENT_BYTES = 256,
    KEPT_IMAGES = 5,     // for the image that each chain of a mixture begins with, and the mixture so far, as float32
};

// An image on its way through its steps.
typedef struct {
    const uint8_t *source;   // (channels, height, width)
    uint8_t *result;         // the same; does not overlap the source
    int64_t channels, height, width;
    const int8_t *ops;       // of the steps to do now
    const float *numbers;    // STEP_NUMBERS of each step
    uint8_t *scratch;        // `scratch_bytes`; KEPT_IMAGES images before it stay from step to step
} Image;

// What an operation may need beside the image and its result: a framed image of words, and some rows.
static inline int64_t scratch_bytes(int64_t height, int64_t width) {
    return 8 * (height + 2) * (width + 2) + 64 * (height + width) + 16384;
}

static inline int64_t pixels_of(const Image *image) { return image->height * image->width; }

// A value clamped to 0..255 and truncated.
static inline uint8_t level_of(float value) {
    float clamped = value > 0.0f ? value : 0.0f;
    return (uint8_t)(int32_t)(clamped < 255.0f ? clamped : 255.0f);
}

// The gray level of a pixel, as torchvision computes it.
static inline int32_t gray_of(float red, float green, float blue) {
    return (int32_t)fmaf(0.114f, blue, fmaf(0.587f, green, red * 0.2989f));
}

// An operation does `steps` steps of an image at once, of which only tables of levels take more than one.
typedef void Operation(const Image *image, int64_t steps);

Operation apply_table, saturate, turn_hue, sharpen, blur, move_pixels, mix_images;

// The images of a batch after their steps, as values of the batch.
typedef struct {
    int64_t (*make_levels)(const void *arguments, int64_t begin, int64_t end);  // NULL: the levels are there
    const void *arguments;    // of `make_levels`, of which each thread has a copy
    int64_t arguments_bytes;  // at most MOST_ARGUMENT_BYTES
    int64_t output_offset;    // where in the arguments their memory is, which is set before each call
    const Picture *pictures;  // of `make_levels`; nothing is done for one that is not decoded
    const uint8_t *levels;    // (N, channels, height, width), without `make_levels`
    int64_t channels;
    const int8_t *ops;        // (N, steps)
    const float *numbers;     // (N, steps, STEP_NUMBERS)
    int64_t steps;
    OutputMemory output;
} TransformArguments;

EXPORT int64_t transform_images(const TransformArguments *transform, int64_t begin, int64_t end);
