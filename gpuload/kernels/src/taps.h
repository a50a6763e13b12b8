// The weights of a resize along one axis, shared by the kernels for RGB and for other pixels.
//
// The filters are Pillow's and torch's: bilinear and bicubic (a = -0.5), stretched where the image is reduced.

#pragma once

#include "picture.h"

// What becomes one axis of the output.
typedef struct {
    int64_t low, high;  // inputs that may be used: low..high-1
    double begin;       // where the region begins
    double step;        // inputs from one output to the next
} Axis;

// The most inputs, outputs and rows at a time that the pictures of a call need.
typedef struct {
    int64_t most_columns;
    int64_t most_taps;   // an even number
    int64_t ring_rows;   // a power of two
} ResizeRoom;

ResizeRoom room_for_resize(
    const Picture *pictures, const Region *regions, int64_t begin, int64_t end, Size size, bool cubic
);

Axis rows_of(const Picture *picture, const Window *window, const Region *region, int64_t outputs);
Axis columns_of(const Picture *picture, const Window *window, const Region *region, int64_t outputs);

// The inputs with a weight of one output.
typedef struct {
    int64_t first, number;
    double total;
} Taps;

// The filter around a center. `weights` are set to each input's weight, not normalised.
static inline Taps fill_taps(double center, const Axis *axis, bool cubic, double *weights) {
    double stretch = fmax(axis->step, 1.0);
    double shrink = 1.0 / stretch;
    double support = stretch * (cubic ? 2.0 : 1.0);
    Taps taps;
    taps.first = clamp((int64_t)floor(center - support + 0.5), axis->low, axis->high - 1);
    int64_t stop = max_of(min_of((int64_t)floor(center + support + 0.5), axis->high), taps.first + 1);
    taps.number = stop - taps.first;
    taps.total = 0.0;
    for (int64_t tap = 0; tap < taps.number; tap++) {
        double x = fabs((double)(taps.first + tap) + 0.5 - center) * shrink;
        double weight = 0.0;
        if (!cubic)
            weight = fmax(1.0 - x, 0.0);
        else if (x < 1.0)
            weight = (1.5 * x - 2.5) * x * x + 1.0;
        else if (x < 2.0)
            weight = ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0;
        weights[tap] = weight;
        taps.total += weight;
    }
    if (taps.total == 0.0) {  // the region lies outside of its window
        weights[0] = 1.0;
        taps.total = 1.0;
    }
    return taps;
}

// Where a pixel of an image's line lies in a picture's line, which holds `held` pixels from `first` on; -1 outside.
// size: of the image's line. mode: index in gpuload.augment.crops.PADDING_MODES of what is outside of the image.
int64_t place_in_line(int64_t pixel, int64_t first, int64_t held, int64_t size, int64_t mode);
