// The resize of pixels that are not 8-bit RGB: any number of channels, 8 or 16 bits, or floats.
//
// The filters, and the order of the two passes, are those of RGB; sums are float32. Integers are rounded after each pass,
// as in Pillow; floats never, as in torch.

#include "resample.h"
#include "taps.h"

typedef struct {
    int64_t outputs;
    int64_t *first;    // (outputs,): the first input of each output
    int64_t *number;   // (outputs,): how many inputs have a weight
    float *weights;    // (most taps, outputs): 0 beyond the taps of an output
    int64_t most_taps;
    double *values;    // (most taps,): memory for one output's weights
} Filter;

// Fills a filter, and returns the largest number of taps of an output.
static int64_t weigh(const Axis *axis, bool cubic, bool flipped, Filter *filter) {
    int64_t most = 1;
    for (int64_t index = 0; index < filter->outputs; index++) {
        int64_t output = flipped ? filter->outputs - 1 - index : index;
        Taps taps = fill_taps(axis->begin + axis->step * (index + 0.5), axis, cubic, filter->values);
        for (int64_t tap = 0; tap < taps.number; tap++)
            filter->weights[tap * filter->outputs + output] = (float)((double)(float)filter->values[tap] / taps.total);
        for (int64_t tap = taps.number; tap < filter->most_taps; tap++)
            filter->weights[tap * filter->outputs + output] = 0.0f;
        filter->first[output] = taps.first;
        filter->number[output] = taps.number;
        most = max_of(most, taps.number);
    }
    return most;
}

// Pillow's gray of an RGB pixel.
static inline float luma_of(const uint8_t *rgb) {
    return (float)((19595 * rgb[0] + 38470 * rgb[1] + 7471 * rgb[2] + 32768) >> 16);
}

// One channel of a row as float32: `number` values from value `begin` on, every step-th.
static void load_line(const uint8_t *row, const Bands *bands, int64_t begin, int64_t number, float *restrict line) {
    int64_t step = bands->step;
    if (bands->luma) {
        for (int64_t x = 0; x < number; x++)
            line[x] = luma_of(row + begin + x * step);
    } else if (bands->value_bytes == 1) {
        for (int64_t x = 0; x < number; x++)
            line[x] = row[begin + x * step];
    } else if (bands->value_bytes == 2) {
        const uint16_t *values = (const uint16_t *)(const void *)row;
        for (int64_t x = 0; x < number; x++)
            line[x] = values[begin + x * step];
    } else {
        const float *values = (const float *)(const void *)row;
        for (int64_t x = 0; x < number; x++)
            line[x] = values[begin + x * step];
    }
}

static void round_line(float *values, int64_t number, float peak) {
    for (int64_t x = 0; x < number; x++) {
        float level = floorf(values[x] + 0.5f);
        level = level > 0.0f ? level : 0.0f;
        values[x] = level < peak ? level : peak;
    }
}

// Writes one channel of a row of an image.
static void store_line(
    const float *restrict line, const Bands *bands, const OutputMemory *output, int64_t image, int64_t row, int64_t channel
) {
    int64_t first;  // the place of the row's first value
    int64_t step;
    if (output->planar) {
        first = ((image * bands->channels + channel) * output->height + row) * output->width;
        step = 1;
    } else {
        first = (image * output->height + row) * output->width * bands->channels + channel;
        step = bands->channels;
    }
    if (!output->floats) {
        uint8_t *restrict levels = output->values + first;
        for (int64_t x = 0; x < output->width; x++)
            levels[x * step] = (uint8_t)line[x];
        return;
    }
    float mean = output->mean[channel];
    float factor = output->factor[channel];
    float *restrict values = (float *)(void *)output->values + first;
    for (int64_t x = 0; x < output->width; x++)
        values[x * step] = (line[x] - mean) * factor;
}

// The memory of one call.
typedef struct {
    Filter rows, columns;
    float *line;     // of the image, and what the last taps read beyond it
    float *sums;     // a line of the output
    float *ring;     // rows that have passed along the rows: row y of a channel at ((y & mask) * channels + channel)
    int64_t mask;
} Resizer;

// The pass along the rows for one channel of a row of the image.
static void sum_along_row(const Resizer *resizer, int64_t taps, int64_t low, float *restrict sums) {
    const Filter *filter = &resizer->columns;
    const int64_t *restrict first = filter->first;
    const float *restrict weights = filter->weights;
    const float *restrict line = resizer->line;
    for (int64_t x = 0; x < filter->outputs; x++)
        sums[x] = weights[x] * line[first[x] - low];
    for (int64_t tap = 1; tap < taps; tap++)
        for (int64_t x = 0; x < filter->outputs; x++)
            sums[x] += weights[tap * filter->outputs + x] * line[first[x] - low + tap];
}

static void resize_image(const ResizeArguments *resize, int64_t image, Resizer *resizer) {
    const Picture *picture = &resize->pictures[image];
    const OutputMemory *output = &resize->output;
    const Bands *bands = resize->bands;
    const Flips *flips = &resize->flips[image];
    Filter *down = &resizer->rows;
    float peak = (float)bands->peak;
    bool is_whole = bands->value_bytes != 4;
    bool cubic = resize->cubic != 0;
    Axis rows = rows_of(picture, &resize->windows[image], &resize->regions[image], output->height);
    Axis columns = columns_of(picture, &resize->windows[image], &resize->regions[image], output->width);
    weigh(&rows, cubic, false, down);
    int64_t taps = weigh(&columns, cubic, flips->horizontal != 0, &resizer->columns);
    int64_t next_row = rows.low;  // the rows before it are, or have been, in the ring
    for (int64_t row = 0; row < output->height; row++) {
        int64_t first = down->first[row];
        for (next_row = max_of(next_row, first); next_row < first + down->number[row]; next_row++) {
            const uint8_t *pixels = picture->pixels + next_row * picture->stride;
            for (int64_t channel = 0; channel < bands->channels; channel++) {
                int64_t slot = (next_row & resizer->mask) * bands->channels + channel;
                float *ring_line = resizer->ring + slot * output->width;
                load_line(pixels, bands, columns.low * bands->step + channel, columns.high - columns.low, resizer->line);
                sum_along_row(resizer, taps, columns.low, ring_line);
                if (is_whole)
                    round_line(ring_line, output->width, peak);
            }
        }
        int64_t shown = flips->vertical ? output->height - 1 - row : row;
        for (int64_t channel = 0; channel < bands->channels; channel++) {
            float *restrict sums = resizer->sums;
            for (int64_t x = 0; x < output->width; x++)
                sums[x] = 0.0f;
            for (int64_t tap = 0; tap < down->number[row]; tap++) {
                int64_t slot = ((first + tap) & resizer->mask) * bands->channels + channel;
                const float *restrict ring_line = resizer->ring + slot * output->width;
                float weight = down->weights[tap * down->outputs + row];
                for (int64_t x = 0; x < output->width; x++)
                    sums[x] += weight * ring_line[x];
            }
            if (is_whole)
                round_line(sums, output->width, peak);
            store_line(sums, bands, output, image, shown, channel);
        }
    }
}

static Filter take_filter(Memory *memory, int64_t outputs, int64_t most_taps, double *values) {
    Filter filter = {.outputs = outputs, .most_taps = most_taps, .values = values};
    filter.first = take(memory, outputs, sizeof *filter.first);
    filter.number = take(memory, outputs, sizeof *filter.number);
    filter.weights = take(memory, most_taps * outputs, sizeof *filter.weights);
    return filter;
}

int64_t resize_bands(const ResizeArguments *resize, int64_t begin, int64_t end) {
    const OutputMemory *output = &resize->output;
    Size size = {output->height, output->width};
    ResizeRoom room = room_for_resize(resize->pictures, resize->regions, begin, end, size, resize->cubic != 0);
    Memory memory = {0};
    Resizer resizer;
    double *values = take(&memory, room.most_taps, sizeof *values);
    resizer.rows = take_filter(&memory, output->height, room.most_taps, values);
    resizer.columns = take_filter(&memory, output->width, room.most_taps, values);
    resizer.line = take(&memory, room.most_columns + room.most_taps, sizeof(float));
    resizer.sums = take(&memory, output->width, sizeof(float));
    resizer.mask = room.ring_rows - 1;
    resizer.ring = take(&memory, room.ring_rows * resize->bands->channels * output->width, sizeof(float));
    if (!memory.has_failed) {
        // The last taps of an output may lie beyond a line, with a weight of 0.
        memset(resizer.line, 0, (size_t)(room.most_columns + room.most_taps) * sizeof(float));
        for (int64_t image = begin; image < end; image++)
            if (resize->pictures[image].pixels != NULL)
                resize_image(resize, image, &resizer);
    }
    release_all(&memory);
    return memory.has_failed ? OUT_OF_MEMORY : DONE;
}

// What of a picture's columns a window shows: places.low..places.high-1, and the place of each column of the output.
typedef struct {
    int64_t *of_column;  // -1 outside
    int64_t low, high;
} Places;

static void crop_image(const CropArguments *crop, int64_t image, Places *places, float *line, float *values) {
    const Picture *picture = &crop->pictures[image];
    const Window *window = &crop->windows[image];
    const Size *size = &crop->sizes[image];
    const Flips *flips = &crop->flips[image];
    const OutputMemory *output = &crop->output;
    const Bands *bands = crop->bands;
    float fill = (float)*(const double *)crop->fill;
    places->low = picture->width;
    places->high = 0;
    for (int64_t column = 0; column < output->width; column++) {
        int64_t x = window->left + (flips->horizontal ? output->width - 1 - column : column);
        int64_t place = place_in_line(x, picture->left, picture->width, size->width, crop->padding_mode);
        places->of_column[column] = place;
        if (place >= 0) {
            places->low = min_of(places->low, place);
            places->high = max_of(places->high, place + 1);
        }
    }
    for (int64_t row = 0; row < output->height; row++) {
        int64_t y = window->top + (flips->vertical ? output->height - 1 - row : row);
        int64_t shown = place_in_line(y, picture->top, picture->height, size->height, crop->padding_mode);
        for (int64_t channel = 0; channel < bands->channels; channel++) {
            if (shown >= 0 && places->low < places->high) {
                const uint8_t *pixels = picture->pixels + shown * picture->stride;
                int64_t begin = places->low * bands->step + channel;
                load_line(pixels, bands, begin, places->high - places->low, line);
            }
            for (int64_t column = 0; column < output->width; column++) {
                int64_t place = places->of_column[column];
                values[column] = shown >= 0 && place >= 0 ? line[place - places->low] : fill;
            }
            store_line(values, bands, output, image, row, channel);
        }
    }
}

int64_t crop_or_pad_bands(const CropArguments *crop, int64_t begin, int64_t end) {
    int64_t most_columns = 1;
    for (int64_t image = begin; image < end; image++)
        most_columns = max_of(most_columns, crop->pictures[image].width);
    Memory memory = {0};
    Places places = {.of_column = take(&memory, crop->output.width, sizeof(int64_t))};
    float *values = take(&memory, crop->output.width, sizeof *values);
    float *line = take(&memory, most_columns, sizeof *line);
    if (!memory.has_failed)
        for (int64_t image = begin; image < end; image++)
            if (crop->pictures[image].pixels != NULL)
                crop_image(crop, image, &places, line, values);
    release_all(&memory);
    return memory.has_failed ? OUT_OF_MEMORY : DONE;
}
