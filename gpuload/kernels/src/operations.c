#include "operations.h"

enum { LEVELS_AT_ONCE = 200000 };  // which stay in the cache

static Operation *const OPERATIONS[OPS] = {
    [BRIGHTNESS] = apply_table,   [CONTRAST] = apply_table,        [SATURATION] = saturate,
    [HUE] = turn_hue,             [GRAYSCALE] = saturate,          [GAUSSIAN_BLUR] = blur,
    [SOLARIZE] = apply_table,     [POSTERIZE] = apply_table,       [AUTOCONTRAST] = apply_table,
    [EQUALIZE] = apply_table,     [INVERT] = apply_table,          [SHARPNESS] = sharpen,
    [AFFINE] = move_pixels,       [WARP_NEAREST] = move_pixels,    [WARP_BILINEAR] = move_pixels,
    [AFFINE_BILINEAR] = move_pixels, [SOLARIZE_ADD] = apply_table, [KEEP] = mix_images,
    [MIX] = mix_images,           [MIXED] = mix_images,
};

// Whether an operation is defined for three channels alone; images of others stay as they are.
static bool needs_rgb(int8_t op) { return op == SATURATION || op == HUE || op == GRAYSCALE; }

static bool needs_statistics(int8_t op) { return op == CONTRAST || op == AUTOCONTRAST || op == EQUALIZE; }

// Whether an operation may follow others in the same table of levels.
static bool may_follow_in_table(int8_t op) {
    bool is_table = op > NOTHING && op < OPS && OPERATIONS[op] == apply_table;
    return op == NOTHING || (is_table && !needs_statistics(op));
}

void mix_images(const Image *image, int64_t steps) {
    (void)steps;
    int64_t values = image->channels * pixels_of(image);
    const uint8_t *restrict source = image->source;
    uint8_t *restrict result = image->result;
    uint8_t *restrict first = image->scratch - KEPT_IMAGES * values;
    float *restrict mixture = (float *)(void *)(image->scratch - 4 * values);
    float share = image->numbers[0];
    int8_t op = image->ops[0];
    for (int64_t place = 0; place < values; place++) {
        float part = share * (float)source[place];
        if (op == KEEP) {
            mixture[place] = part;
            first[place] = source[place];
        } else {
            mixture[place] += part;
        }
        result[place] = op == MIXED ? level_of(mixture[place]) : first[place];
    }
}

// Goes through the steps of an image, whose result goes to two places in turn: `image->result` and `spare`. Returns where
// the last one is.
static const uint8_t *apply_steps(Image image, int64_t steps, uint8_t *spare) {
    for (int64_t step = 0; step < steps;) {
        int8_t op = image.ops[0];
        int64_t together = 1;
        if (op > NOTHING && op < OPS && !(needs_rgb(op) && image.channels != 3)) {
            if (OPERATIONS[op] == apply_table)
                while (step + together < steps && may_follow_in_table(image.ops[together]))
                    together++;
            OPERATIONS[op](&image, together);
            uint8_t *free_memory = spare;
            spare = image.result;
            image.source = image.result;
            image.result = free_memory;
        }
        step += together;
        image.ops += together;
        image.numbers += STEP_NUMBERS * together;
    }
    return image.source;
}

// Writes the levels of an image, (channels, height, width), as its values in the batch.
static void store_image(const uint8_t *image, int64_t channels, int64_t row, const OutputMemory *output) {
    int64_t pixels = output->height * output->width;
    int64_t first = row * channels * pixels;
    int64_t step = output->planar ? 1 : channels;
    for (int64_t channel = 0; channel < channels; channel++) {
        const uint8_t *restrict levels = image + channel * pixels;
        int64_t begin = first + (output->planar ? channel * pixels : channel);
        if (!output->floats) {
            uint8_t *restrict values = output->values + begin;
            for (int64_t pixel = 0; pixel < pixels; pixel++)
                values[pixel * step] = levels[pixel];
            continue;
        }
        float mean = output->mean[channel];
        float factor = output->factor[channel];
        float *restrict values = (float *)(void *)output->values + begin;
        for (int64_t pixel = 0; pixel < pixels; pixel++)
            values[pixel * step] = ((float)levels[pixel] - mean) * factor;
    }
}

int64_t transform_images(const TransformArguments *transform, int64_t begin, int64_t end) {
    const OutputMemory *output = &transform->output;
    int64_t image_bytes = transform->channels * output->height * output->width;
    // Small images are made several at a time, since what makes them begins each call with memory for its weights.
    int64_t at_once = max_of(LEVELS_AT_ONCE / image_bytes, 1);
    Memory memory = {0};
    uint8_t *levels = take(&memory, at_once * image_bytes, 1);
    uint8_t *places = take(&memory, 2 * image_bytes, 1);
    int64_t kept_bytes = ceil_div(KEPT_IMAGES * image_bytes, PIECE_ALIGNMENT) * PIECE_ALIGNMENT;
    uint8_t *kept = take(&memory, kept_bytes + scratch_bytes(output->height, output->width), 1);
    int64_t result = memory.has_failed ? OUT_OF_MEMORY : DONE;
    // Several threads are here at the same time, each with levels of its own.
    _Alignas(8) uint8_t arguments[MOST_ARGUMENT_BYTES];
    OutputMemory *levels_output = (OutputMemory *)(void *)(arguments + transform->output_offset);
    if (transform->make_levels != NULL)
        memcpy(arguments, transform->arguments, (size_t)transform->arguments_bytes);
    int64_t made = begin;  // the images before it are in `levels`
    const uint8_t *first_image = levels - begin * image_bytes;
    for (int64_t row = begin; row < end && result == DONE; row++) {
        const uint8_t *source = transform->levels + row * image_bytes;
        if (transform->make_levels != NULL) {
            if (row == made) {
                made = min_of(row + at_once, end);
                first_image = levels - row * image_bytes;
                levels_output->values = (uint8_t *)(uintptr_t)first_image;
                result = transform->make_levels(arguments, row, made);
            }
            if (result != DONE || transform->pictures[row].pixels == NULL)
                continue;
            source = first_image + row * image_bytes;
        }
        Image image = {
            .source = source,
            .result = places,
            .channels = transform->channels,
            .height = output->height,
            .width = output->width,
            .ops = transform->ops + row * transform->steps,
            .numbers = transform->numbers + row * transform->steps * STEP_NUMBERS,
            .scratch = kept + kept_bytes,
        };
        store_image(apply_steps(image, transform->steps, places + image_bytes), transform->channels, row, output);
    }
    release_all(&memory);
    return result;
}
