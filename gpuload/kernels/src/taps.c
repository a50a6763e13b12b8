#include "taps.h"

enum { CONSTANT, EDGE, REFLECT, SYMMETRIC };  // PADDING_MODES

ResizeRoom room_for_resize(
    const Picture *pictures, const Region *regions, int64_t begin, int64_t end, Size size, bool cubic
) {
    ResizeRoom room = {1, 1, 1};
    for (int64_t image = begin; image < end; image++) {
        double tall = regions[image].bottom - regions[image].top;
        double wide = regions[image].right - regions[image].left;
        double step = fmax(tall / size.height, wide / size.width) / pictures[image].factor;
        int64_t taps = (int64_t)ceil(fmax(step, 1.0) * (cubic ? 4.0 : 2.0)) + 2;
        room.most_taps = max_of(room.most_taps, taps);
        room.most_columns = max_of(room.most_columns, pictures[image].width);
    }
    room.most_taps += room.most_taps % 2;
    while (room.ring_rows < room.most_taps)
        room.ring_rows *= 2;
    return room;
}

// first, held: where the picture begins along the axis, and how many pixels it has.
static Axis axis_of(
    int64_t window_begin, int64_t window_end, double region_begin, double region_end, int64_t first, int64_t held,
    int64_t factor, int64_t outputs
) {
    Axis axis;
    // At least one pixel, and none outside, whatever the index says of the image.
    axis.low = clamp(floor_div(window_begin - first, factor), 0, held - 1);
    axis.high = max_of(min_of(ceil_div(window_end - first, factor), held), axis.low + 1);
    axis.begin = (region_begin - first) / factor;
    axis.step = (region_end - region_begin) / factor / outputs;
    return axis;
}

Axis rows_of(const Picture *picture, const Window *window, const Region *region, int64_t outputs) {
    return axis_of(
        window->top, window->bottom, region->top, region->bottom, picture->top, picture->height, picture->factor, outputs
    );
}

Axis columns_of(const Picture *picture, const Window *window, const Region *region, int64_t outputs) {
    return axis_of(
        window->left, window->right, region->left, region->right, picture->left, picture->width, picture->factor, outputs
    );
}

// The pixel within the image that is shown at a pixel outside of it: gpuload.augment.crops.source_of.
static int64_t source_of(int64_t pixel, int64_t size, int64_t mode) {
    if (mode == EDGE)
        return clamp(pixel, 0, size - 1);
    bool repeats_edge = mode != REFLECT;
    int64_t period = max_of(2 * size - (repeats_edge ? 0 : 2), 1);
    int64_t within = pixel - period * floor_div(pixel, period);
    if (within < size)
        return within;
    return period - within - (repeats_edge ? 1 : 0);
}

int64_t place_in_line(int64_t pixel, int64_t first, int64_t held, int64_t size, int64_t mode) {
    if (mode == CONSTANT)
        return pixel >= first && pixel - first < held ? pixel - first : -1;
    return clamp(source_of(pixel, size, mode) - first, 0, held - 1);  // none outside, whatever the index says
}
