// The resize of 8-bit RGB: a region of each image to the size of the output, antialiased.
//
// As in Pillow and torch, a pass along the rows and then one along the columns each round to whole levels. Taps are taken
// in pairs, the last one of an odd number with a weight of 0: a branch for single taps costs more than it saves.

#include "resample.h"
#include "store.h"
#include "taps.h"

static const uint64_t ALL_LEVELS = 255 * ((1ULL << 2 * LANE) | (1ULL << LANE) | 1);

// The filter along one axis.
typedef struct {
    int64_t outputs;
    uint64_t *first;     // (outputs,): the first input of each output
    int64_t *number;     // (outputs,): how many inputs have a weight
    uint64_t *weights;   // (most taps, outputs): 0 beyond the taps of an output, negative ones as two's complement
    int64_t most_taps;
    double *values;      // (most taps,): memory for one output's weights
} Filter;

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
        filter->first[output] = (uint64_t)start;
        filter->number[output] = near == one ? 1 : 2;
        filter->weights[output] = (uint64_t)near;
        filter->weights[filter->outputs + output] = (uint64_t)(one - near);
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
        filter->weights[tap * filter->outputs + output] = (uint64_t)weight;
        if (weight != 0)
            used = tap + 1;
    }
    for (int64_t tap = taps->number; tap < filter->most_taps; tap++)
        filter->weights[tap * filter->outputs + output] = 0;
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
        filter->first[output] = (uint64_t)taps.first;
        filter->number[output] = round_weights(&taps, cubic ? CUBIC_BITS : LINEAR_BITS, output, filter);
        most = max_of(most, filter->number[output]);
    }
    return most;
}

static void pack(const uint8_t *pixels, int64_t number, uint64_t *restrict words) {
    for (int64_t x = 0; x < number; x++)
        words[x] = word_of(pixels + 3 * x);
}

// For each output, `start` and the weighted sum of its taps out of a line of words.
static void sum_along_row(
    const uint64_t *restrict words, const Filter *filter, int64_t taps, uint64_t start, uint64_t *restrict sums
) {
    int64_t outputs = filter->outputs;
    const uint64_t *restrict first = filter->first;
    const uint64_t *restrict weight = filter->weights;
    for (int64_t x = 0; x < outputs; x++)
        sums[x] = start + weight[x] * words[first[x]] + weight[outputs + x] * words[first[x] + 1];
    for (int64_t tap = 2; tap < taps; tap += 2) {
        weight += 2 * outputs;
        for (int64_t x = 0; x < outputs; x++)
            sums[x] += weight[x] * words[first[x] + tap] + weight[outputs + x] * words[first[x] + tap + 1];
    }
}

// Rows of words, of which the last few are kept: row y of the image is at y & mask.
typedef struct {
    uint64_t *words;
    int64_t stride;  // words from row to row
    int64_t mask;
} Ring;

static uint64_t *ring_row(const Ring *ring, int64_t row) { return ring->words + (row & ring->mask) * ring->stride; }

// For one output row, `start` and the weighted sum of its taps, which are rows of words.
static void sum_rows(
    const Ring *ring, const Filter *filter, int64_t output, uint64_t start, int64_t number, uint64_t *restrict sums
) {
    int64_t first = (int64_t)filter->first[output];
    for (int64_t tap = 0; tap == 0 || tap < filter->number[output]; tap += 2) {
        const uint64_t *restrict upper = ring_row(ring, first + tap);
        const uint64_t *restrict lower = ring_row(ring, first + tap + 1);
        uint64_t weight = filter->weights[tap * filter->outputs + output];
        uint64_t lower_weight = filter->weights[(tap + 1) * filter->outputs + output];
        if (tap == 0)
            for (int64_t x = 0; x < number; x++)
                sums[x] = start + weight * upper[x] + lower_weight * lower[x];
        else
            for (int64_t x = 0; x < number; x++)
                sums[x] += weight * upper[x] + lower_weight * lower[x];
    }
}

// One channel of a sum of a cubic filter, 0..255.
static inline uint64_t cubic_level(uint64_t sum, int channel) {
    uint64_t biased = (sum >> (channel * LANE + CUBIC_BITS)) & ((1 << (LANE - CUBIC_BITS)) - 1);
    int32_t level = (int32_t)biased - (CUBIC_BIAS >> CUBIC_BITS);
    level = level < 0 ? 0 : level;
    return (uint64_t)(level > 255 ? 255 : level);
}

static void round_sums(const uint64_t *restrict sums, int64_t number, bool cubic, uint64_t *restrict words) {
    if (cubic)
        for (int64_t x = 0; x < number; x++) {
            uint64_t green = cubic_level(sums[x], 1) << LANE;
            uint64_t blue = cubic_level(sums[x], 2) << 2 * LANE;
            words[x] = cubic_level(sums[x], 0) | green | blue;
        }
    else
        for (int64_t x = 0; x < number; x++)
            words[x] = (sums[x] >> LINEAR_BITS) & ALL_LEVELS;
}

static Filter take_filter(Memory *memory, int64_t outputs, int64_t most_taps, double *values) {
    Filter filter = {.outputs = outputs, .most_taps = most_taps, .values = values};
    filter.first = take(memory, outputs, sizeof *filter.first);
    filter.number = take(memory, outputs, sizeof *filter.number);
    filter.weights = take(memory, most_taps * outputs, sizeof *filter.weights);
    return filter;
}

// The memory of one call.
typedef struct {
    Filter rows, columns;
    Ring ring;
    uint64_t *words;     // a line of the image, and what the last taps read beyond it
    uint64_t *sums;      // a line of the output
    uint64_t *row_sums;  // a line of the image, if the pass along the columns goes first
} Resizer;

static void resize_image(const Resize *resize, int64_t image, Resizer *resizer) {
    const Picture *picture = &resize->pictures[image];
    const Output *output = &resize->output;
    const Flips *flips = &resize->flips[image];
    Filter *down = &resizer->rows;
    Filter *across = &resizer->columns;
    bool cubic = resize->cubic != 0;
    int bits = cubic ? CUBIC_BITS : LINEAR_BITS;
    uint64_t start = (uint64_t)((cubic ? CUBIC_BIAS : 0) + (1 << (bits - 1))) * EACH_LANE;
    Axis rows = rows_of(picture, &resize->windows[image], &resize->regions[image], output->height);
    Axis columns = columns_of(picture, &resize->windows[image], &resize->regions[image], output->width);
    weigh(&rows, cubic, false, down);
    int64_t taps = weigh(&columns, cubic, flips->horizontal != 0, across);
    for (int64_t x = 0; x < output->width; x++)
        across->first[x] -= (uint64_t)columns.low;
    int64_t wide = columns.high - columns.low;
    // The pass along the columns goes first where many pixels become few: it leaves fewer rows to the pass along the
    // rows, which gathers. 1200 pixels to 224 take 0.43 ms in this order and 0.61 in the other. But single pixels then
    // differ by a level, so this is for images decoded at a reduced size, which are not exact anyway.
    bool columns_first = picture->factor > 1;
    int64_t next_row = rows.low;  // the rows before it are, or have been, in the ring
    for (int64_t row = 0; row < output->height; row++) {
        int64_t first = (int64_t)down->first[row];
        for (next_row = max_of(next_row, first); next_row < first + down->number[row]; next_row++) {
            const uint8_t *pixels = picture->pixels + next_row * picture->stride + 3 * columns.low;
            uint64_t *ring_words = ring_row(&resizer->ring, next_row);
            if (columns_first) {
                pack(pixels, wide, ring_words);
                continue;
            }
            pack(pixels, wide, resizer->words);
            sum_along_row(resizer->words, across, taps, start, resizer->sums);
            round_sums(resizer->sums, output->width, cubic, ring_words);
        }
        if (columns_first) {
            sum_rows(&resizer->ring, down, row, start, wide, resizer->row_sums);
            round_sums(resizer->row_sums, wide, cubic, resizer->words);
            sum_along_row(resizer->words, across, taps, start, resizer->sums);
        } else {
            sum_rows(&resizer->ring, down, row, start, output->width, resizer->sums);
        }
        int64_t shown = flips->vertical ? output->height - 1 - row : row;
        store_rgb_row(resizer->sums, cubic, output, image, shown);
    }
}

int64_t resize_rgb(const Resize *resize, int64_t begin, int64_t end) {
    const Output *output = &resize->output;
    Size size = {output->height, output->width};
    ResizeRoom room = room_for_resize(resize->pictures, resize->regions, begin, end, size, resize->cubic != 0);
    Memory memory = {0};
    Resizer resizer;
    double *values = take(&memory, room.most_taps, sizeof *values);
    resizer.rows = take_filter(&memory, output->height, room.most_taps, values);
    resizer.columns = take_filter(&memory, output->width, room.most_taps, values);
    resizer.ring.stride = max_of(output->width, room.most_columns);
    resizer.ring.mask = room.ring_rows - 1;
    resizer.ring.words = take(&memory, room.ring_rows * resizer.ring.stride, sizeof(uint64_t));
    resizer.words = take(&memory, room.most_columns + room.most_taps, sizeof(uint64_t));
    resizer.sums = take(&memory, max_of(output->width, STORED_PIXELS), sizeof(uint64_t));
    resizer.row_sums = take(&memory, room.most_columns, sizeof(uint64_t));
    if (!memory.has_failed) {
        // The last taps of an output may lie beyond a line, with a weight of 0.
        memset(resizer.words, 0, (size_t)(room.most_columns + room.most_taps) * sizeof(uint64_t));
        memset(resizer.sums, 0, (size_t)max_of(output->width, STORED_PIXELS) * sizeof(uint64_t));
        for (int64_t image = begin; image < end; image++)
            if (resize->pictures[image].pixels != NULL)
                resize_image(resize, image, &resizer);
    }
    release_all(&memory);
    return memory.has_failed ? OUT_OF_MEMORY : DONE;
}

int64_t crop_or_pad_rgb(const CropOrPad *crop, int64_t begin, int64_t end) {
    const Output *output = &crop->output;
    int64_t width = output->width;
    Memory memory = {0};
    uint64_t *words = take(&memory, max_of(width, STORED_PIXELS), sizeof *words);
    int64_t *places = take(&memory, width, sizeof *places);
    if (memory.has_failed) {
        release_all(&memory);
        return OUT_OF_MEMORY;
    }
    memset(words, 0, (size_t)max_of(width, STORED_PIXELS) * sizeof *words);
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
