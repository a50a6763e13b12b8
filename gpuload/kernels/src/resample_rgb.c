// The resize of 8-bit RGB: a region of each image to the size of the output, antialiased.
//
// As in Pillow and torch, a pass along the rows and then one along the columns each round to whole levels. Taps are taken
// in pairs, the last one of an odd number with a weight of 0: a branch for single taps costs more than it saves. One load
// brings both words of a pair along a row; with gathered words 500×375 to 224×224 took 1.6 times as long (2026-11).

#include "resample.h"
#include "store.h"
#include "taps.h"

static const uint64_t ALL_LEVELS = 255 * ((1ULL << 2 * LANE) | (1ULL << LANE) | 1);

typedef int64_t I64x4 __attribute__((vector_size(32)));
typedef int32_t I32x4 __attribute__((vector_size(16)));

enum { OUTPUTS_AT_ONCE = 4 };

// The filter along one axis.
typedef struct {
    int64_t outputs;
    int64_t stride;     // outputs, rounded up to OUTPUTS_AT_ONCE: those too many begin at 0
    int32_t *first;     // (stride,): the first input of each output
    int64_t *number;    // (outputs,): how many inputs have a weight
    int32_t *weights;   // (most taps / 2, stride, 2): 0 beyond the taps of an output
    int64_t most_taps;
    double *values;     // (most taps,): memory for one output's weights
} Filter;

static inline int32_t *weight_of(const Filter *filter, int64_t output, int64_t tap) {
    return &filter->weights[(tap / 2 * filter->stride + output) * 2 + tap % 2];
}

// The bilinear filter of a region that is not reduced: at most two inputs have a weight. Five times as fast.
static void weigh_two(const Axis *axis, bool flipped, Filter *filter) {
    double one = 1 << LINEAR_BITS;
    for (int64_t index = 0; index < filter->outputs; index++) {
        int64_t output = flipped ? filter->outputs - 1 - index : index;
        double center = axis->begin + axis->step * (index + 0.5) - 0.5;
        double start = floor(center);
        double near = floor((start + 1.0 - center) * one + 0.5);
        if (start < axis->low || start >= axis->high - 1) {
            start = fmin(fmax(start, (double)axis->low), (double)(axis->high - 1));
            near = one;
        }
        filter->first[output] = (int32_t)start;
        filter->number[output] = near == one ? 1 : 2;
        *weight_of(filter, output, 0) = (int32_t)near;
        *weight_of(filter, output, 1) = (int32_t)(one - near);
    }
}

// The weights of one output as whole numbers that sum to 1 << bits. Returns how many inputs have one.
static int64_t round_weights(const Taps *taps, int bits, int64_t output, Filter *filter) {
    double scale = (double)(1 << bits) / taps->total;
    double exact = 0.0;
    int64_t sum = 0;
    int64_t used = 1;
    for (int64_t tap = 0; tap < taps->number; tap++) {
        // The rounding error of the weights so far goes into the next one.
        exact += filter->values[tap] * scale;
        int64_t weight = (int64_t)floor(exact + 0.5) - sum;
        sum += weight;
        *weight_of(filter, output, tap) = (int32_t)weight;
        if (weight != 0)
            used = tap + 1;
    }
    for (int64_t tap = taps->number; tap < filter->most_taps; tap++)
        *weight_of(filter, output, tap) = 0;
    return used;
}

// Fills a filter, and returns the largest number of taps of an output.
static int64_t weigh(const Axis *axis, bool cubic, bool flipped, Filter *filter) {
    if (!cubic && axis->step <= 1.0) {
        weigh_two(axis, flipped, filter);
        return 2;
    }
    int64_t most = 1;
    for (int64_t index = 0; index < filter->outputs; index++) {
        int64_t output = flipped ? filter->outputs - 1 - index : index;
        Taps taps = fill_taps(axis->begin + axis->step * (index + 0.5), axis, cubic, filter->values);
        filter->first[output] = (int32_t)taps.first;
        filter->number[output] = round_weights(&taps, cubic ? CUBIC_BITS : LINEAR_BITS, output, filter);
        most = max_of(most, filter->number[output]);
    }
    return most;
}

static void pack(const uint8_t *pixels, int64_t number, uint64_t *restrict words) {
    for (int64_t x = 0; x < number; x++)
        words[x] = word_of(pixels + 3 * x);
}

// What makes a sum of whole weights round to the nearest, and keeps the overshoot of a cubic filter above 0.
INLINED uint64_t start_of(bool cubic) {
    int bits = cubic ? CUBIC_BITS : LINEAR_BITS;
    return (uint64_t)((cubic ? CUBIC_BIAS : 0) + (1 << (bits - 1))) * EACH_LANE;
}

// A weight for words. Those of a bilinear filter have no sign: without one, a product of 64 bits takes two multiplications
// where a processor multiplies 32 bits at a time, else three.
INLINED uint64_t as_factor(int32_t weight, bool cubic) { return cubic ? (uint64_t)(int64_t)weight : (uint32_t)weight; }

INLINED U64x4 as_factors(I32x4 weights, bool cubic) {
    if (cubic)
        return (U64x4)__builtin_convertvector(weights, I64x4);
    return __builtin_convertvector((U32x4)weights, U64x4);
}

INLINED U64x16 load_words(const uint64_t *words) {
    U64x16 loaded;
    memcpy(&loaded, words, sizeof loaded);
    return loaded;
}

// Rounds sums to a line of words.
INLINED void round_sums(const uint64_t *restrict sums, int64_t number, bool cubic, uint64_t *restrict words) {
    for (int64_t x = 0; x < number; x += WORDS_AT_ONCE) {
        U64x16 rounded = load_words(sums + x);
        if (cubic) {
            U32x16 red;
            U32x16 green;
            U32x16 blue;
            split_sums(rounded, true, &red, &green, &blue);
            rounded = __builtin_convertvector(red | green << LANE, U64x16);
            rounded |= __builtin_convertvector(blue, U64x16) << 2 * LANE;
        } else {
            rounded = rounded >> LINEAR_BITS & ALL_LEVELS;
        }
        memcpy(words + x, &rounded, sizeof rounded);
    }
}

INLINED I32x4 load_weights(const int32_t *weights) {
    I32x4 loaded;
    memcpy(&loaded, weights, sizeof loaded);
    return loaded;
}

// For each output, the weighted sum of its taps out of a line of words.
INLINED void sum_taps(
    const uint64_t *restrict words, const Filter *filter, int64_t taps, bool cubic, uint64_t *restrict sums
) {
    for (int64_t x = 0; x < filter->outputs; x += OUTPUTS_AT_ONCE) {
        const int32_t *first = filter->first + x;
        U64x4 upper = {0};
        U64x4 lower = {0};
        for (int64_t tap = 0; tap < taps; tap += 2) {
            const int32_t *weights = weight_of(filter, x, tap);
            U64x4 upper_words = load_pairs(words + first[0] + tap, words + first[1] + tap);
            U64x4 lower_words = load_pairs(words + first[2] + tap, words + first[3] + tap);
            upper += upper_words * as_factors(load_weights(weights), cubic);
            lower += lower_words * as_factors(load_weights(weights + OUTPUTS_AT_ONCE), cubic);
        }
        U64x4 crossed = __builtin_shufflevector(upper, lower, 0, 4, 2, 6) + __builtin_shufflevector(upper, lower, 1, 5, 3, 7);
        U64x4 ordered = __builtin_shufflevector(crossed, crossed, 0, 2, 1, 3) + start_of(cubic);
        memcpy(sums + x, &ordered, sizeof ordered);
    }
}

// The weighted sum of two words whose weights sum to 1 << LINEAR_BITS, by one multiplication.
#define BETWEEN(first, second, second_weight) (((first) << LINEAR_BITS) + ((second) - (first)) * (second_weight))

// The same where no output has more than two taps, of a bilinear filter.
INLINED void sum_two_taps(const uint64_t *restrict words, const Filter *filter, uint64_t *restrict sums) {
    for (int64_t x = 0; x < filter->outputs; x += OUTPUTS_AT_ONCE) {
        Neighbours taps = load_neighbours(words, filter->first + x);
        U64x4 weights;  // two in each number
        memcpy(&weights, weight_of(filter, x, 0), sizeof weights);
        U64x4 sum = BETWEEN(taps.first, taps.second, weights >> 32) + start_of(false);
        memcpy(sums + x, &sum, sizeof sum);
    }
}

INLINED void sum_along_row(const uint64_t *words, const Filter *filter, int64_t taps, bool cubic, uint64_t *sums) {
    if (!cubic && taps == 2)
        sum_two_taps(words, filter, sums);
    else
        sum_taps(words, filter, taps, cubic, sums);
}

// Rows of words, of which the last few are kept: row y of the image is at y & mask.
typedef struct {
    uint64_t *words;
    int64_t stride;  // words from row to row
    int64_t mask;
} Ring;

static uint64_t *ring_row(const Ring *ring, int64_t row) { return ring->words + (row & ring->mask) * ring->stride; }

// For one output row, the weighted sum of its taps, which are rows of words.
INLINED void sum_rows(
    const Ring *ring, const Filter *filter, int64_t output, bool cubic, int64_t number, uint64_t *restrict sums
) {
    int64_t first = filter->first[output];
    bool has_two_taps = !cubic && filter->number[output] <= 2;
    for (int64_t x = 0; x < number; x += WORDS_AT_ONCE) {
        U64x16 sum = (U64x16){0} + start_of(cubic);
        if (has_two_taps) {
            U64x16 upper = load_words(ring_row(ring, first) + x);
            U64x16 lower = load_words(ring_row(ring, first + 1) + x);
            sum += BETWEEN(upper, lower, as_factor(*weight_of(filter, output, 1), cubic));
        }
        for (int64_t tap = 0; !has_two_taps && tap < filter->number[output]; tap += 2) {
            U64x16 upper = load_words(ring_row(ring, first + tap) + x);
            U64x16 lower = load_words(ring_row(ring, first + tap + 1) + x);
            sum += upper * as_factor(*weight_of(filter, output, tap), cubic);
            sum += lower * as_factor(*weight_of(filter, output, tap + 1), cubic);
        }
        memcpy(sums + x, &sum, sizeof sum);
    }
}

// Rounded up to a multiple of a power of two.
static int64_t in_whole(int64_t number, int64_t multiple) { return (number + multiple - 1) & -multiple; }

static Filter take_filter(Memory *memory, int64_t outputs, int64_t most_taps, double *values) {
    int64_t stride = in_whole(outputs, OUTPUTS_AT_ONCE);
    Filter filter = {.outputs = outputs, .stride = stride, .most_taps = most_taps, .values = values};
    filter.first = take(memory, stride, sizeof *filter.first);
    filter.number = take(memory, outputs, sizeof *filter.number);
    filter.weights = take(memory, most_taps * stride, sizeof *filter.weights);
    return filter;
}

// The memory of one call. Each line has room for WORDS_AT_ONCE words too many.
typedef struct {
    Filter rows, columns;
    Ring ring;
    uint64_t *words;     // a line of the image, and what the last taps read beyond it
    uint64_t *sums;      // a line of the output
    uint64_t *row_sums;  // a line of the image, if the pass along the columns goes first
} Resizer;

INLINED void resize_image(const ResizeArguments *resize, int64_t image, bool cubic, Resizer *resizer) {
    const Picture *picture = &resize->pictures[image];
    const OutputMemory *output = &resize->output;
    const Flips *flips = &resize->flips[image];
    Filter *down = &resizer->rows;
    Filter *across = &resizer->columns;
    Axis rows = rows_of(picture, &resize->windows[image], &resize->regions[image], output->height);
    Axis columns = columns_of(picture, &resize->windows[image], &resize->regions[image], output->width);
    weigh(&rows, cubic, false, down);
    int64_t taps = weigh(&columns, cubic, flips->horizontal != 0, across);
    for (int64_t x = 0; x < output->width; x++)
        across->first[x] -= (int32_t)columns.low;
    int64_t wide = columns.high - columns.low;
    // The pass along the columns goes first where many pixels become few: it leaves fewer rows to the pass along the
    // rows, which takes longer a pixel. 1200×1200 to 224×224 takes 0.76 ms in this order and 0.93 in the other (2026-11).
    // But single pixels then differ by a level, so this is for images decoded at a reduced size, which are not exact anyway.
    bool columns_first = picture->factor > 1;
    int64_t next_row = rows.low;  // the rows before it are, or have been, in the ring
    for (int64_t row = 0; row < output->height; row++) {
        int64_t first = down->first[row];
        for (next_row = max_of(next_row, first); next_row < first + down->number[row]; next_row++) {
            const uint8_t *pixels = picture->pixels + next_row * picture->stride + 3 * columns.low;
            uint64_t *ring_words = ring_row(&resizer->ring, next_row);
            if (columns_first) {
                pack(pixels, wide, ring_words);
                continue;
            }
            pack(pixels, wide, resizer->words);
            sum_along_row(resizer->words, across, taps, cubic, resizer->sums);
            round_sums(resizer->sums, output->width, cubic, ring_words);
        }
        if (columns_first) {
            sum_rows(&resizer->ring, down, row, cubic, wide, resizer->row_sums);
            round_sums(resizer->row_sums, wide, cubic, resizer->words);
            sum_along_row(resizer->words, across, taps, cubic, resizer->sums);
        } else {
            sum_rows(&resizer->ring, down, row, cubic, output->width, resizer->sums);
        }
        int64_t shown = flips->vertical ? output->height - 1 - row : row;
        store_rgb_row(resizer->sums, cubic, output, image, shown);
    }
}

int64_t resize_rgb(const ResizeArguments *resize, int64_t begin, int64_t end) {
    const OutputMemory *output = &resize->output;
    Size size = {output->height, output->width};
    ResizeRoom room = room_for_resize(resize->pictures, resize->regions, begin, end, size, resize->cubic != 0);
    int64_t output_words = in_whole(output->width, WORDS_AT_ONCE);
    int64_t line_words = in_whole(room.most_columns, WORDS_AT_ONCE);
    Memory memory = {0};
    Resizer resizer;
    double *values = take(&memory, room.most_taps, sizeof *values);
    resizer.rows = take_filter(&memory, output->height, room.most_taps, values);
    resizer.columns = take_filter(&memory, output->width, room.most_taps, values);
    resizer.ring.stride = max_of(output_words, line_words);
    resizer.ring.mask = room.ring_rows - 1;
    resizer.ring.words = take(&memory, room.ring_rows * resizer.ring.stride, sizeof(uint64_t));
    resizer.words = take(&memory, line_words + room.most_taps, sizeof(uint64_t));
    resizer.sums = take(&memory, output_words, sizeof(uint64_t));
    resizer.row_sums = take(&memory, line_words, sizeof(uint64_t));
    if (!memory.has_failed) {
        // What no output needs is read, too, with a weight of 0 or to be left out.
        memset(resizer.words, 0, (size_t)(line_words + room.most_taps) * sizeof(uint64_t));
        memset(resizer.columns.first, 0, (size_t)resizer.columns.stride * sizeof *resizer.columns.first);
        for (int64_t image = begin; image < end; image++) {
            if (resize->pictures[image].pixels == NULL)
                continue;
            if (resize->cubic)
                resize_image(resize, image, true, &resizer);
            else
                resize_image(resize, image, false, &resizer);
        }
    }
    release_all(&memory);
    return memory.has_failed ? OUT_OF_MEMORY : DONE;
}

int64_t crop_or_pad_rgb(const CropArguments *crop, int64_t begin, int64_t end) {
    const OutputMemory *output = &crop->output;
    int64_t width = output->width;
    Memory memory = {0};
    uint64_t *words = take(&memory, max_of(width, WORDS_AT_ONCE), sizeof *words);
    int64_t *places = take(&memory, width, sizeof *places);
    if (memory.has_failed) {
        release_all(&memory);
        return OUT_OF_MEMORY;
    }
    memset(words, 0, (size_t)max_of(width, WORDS_AT_ONCE) * sizeof *words);
    uint64_t outside = word_of(crop->fill) << LINEAR_BITS;
    for (int64_t image = begin; image < end; image++) {
        const Picture *picture = &crop->pictures[image];
        const Window *window = &crop->windows[image];
        const Size *size = &crop->sizes[image];
        const Flips *flips = &crop->flips[image];
        if (picture->pixels == NULL)
            continue;
        for (int64_t column = 0; column < width; column++) {
            int64_t x = window->left + (flips->horizontal ? width - 1 - column : column);
            places[column] = place_in_line(x, picture->left, picture->width, size->width, crop->padding_mode);
        }
        for (int64_t row = 0; row < output->height; row++) {
            int64_t y = window->top + (flips->vertical ? output->height - 1 - row : row);
            int64_t line = place_in_line(y, picture->top, picture->height, size->height, crop->padding_mode);
            const uint8_t *pixels = picture->pixels + max_of(line, 0) * picture->stride;
            for (int64_t column = 0; column < width; column++) {
                bool is_shown = line >= 0 && places[column] >= 0;
                words[column] = is_shown ? word_of(pixels + 3 * places[column]) << LINEAR_BITS : outside;
            }
            store_rgb_row(words, false, output, image, row);
        }
    }
    release_all(&memory);
    return DONE;
}
