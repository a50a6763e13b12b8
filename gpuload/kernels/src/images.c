#include "images.h"

static bool may_be_png(Span file) { return file.size > 0 && file.bytes[0] == 0x89; }

static void decode_image(const ImageBatch *batch, int64_t image, ImageScratch *scratch, uint8_t *spare, uint8_t *pixels) {
    Span file = batch->files[image];
    const Window *window = &batch->windows[image];
    Picture *picture = &batch->pictures[image];
    if (batch->layout == NO_LAYOUT)
        return;
    if (may_be_png(file))
        decode_png(file, batch->points[image], window, batch->layout, &scratch->png, spare, pixels, picture);
    else if (batch->layout == AS_RGB)
        decode_jpeg(
            file, batch->points[image], window, batch->factors[image], batch->all_upright, &scratch->jpeg, spare, pixels,
            picture
        );
}

void decode_images(const ImageBatch *batch, const ImageThread *thread, int64_t begin, int64_t end) {
    uint8_t *spare = thread->memory;
    for (int64_t image = begin; image < end; image++)
        spare += batch->room[image];
    uint8_t *pixels = thread->memory;
    for (int64_t image = begin; image < end; image++) {
        if (batch->pictures[image].pixels == NULL)
            decode_image(batch, image, thread->scratch, spare, pixels);
        pixels += batch->room[image];
    }
}

// Completes the pictures of rows begin..end-1.
EXPORT void decode_rows(const ImageBatch *batch, const ImageThread *thread, int64_t begin, int64_t end) {
    decode_images(batch, thread, begin, end);
}

EXPORT int64_t image_scratch_bytes(void) { return sizeof(ImageScratch); }

static int64_t pixels_room(const ImageBatch *batch, int64_t image, int64_t height, int64_t width) {
    int64_t factor = batch->factors[image];
    if (batch->layout != AS_RGB || (factor > 1 && may_be_png(batch->files[image])))
        return height * width * layout_bytes(batch->layout) + WRITTEN_BEYOND;
    return jpeg_pixels_room(floor_div(height, factor), floor_div(width, factor));
}

int64_t image_room(const ImageBatch *batch, int64_t number) {
    int64_t widest_part = 0;
    int64_t widest = 0;
    for (int64_t image = 0; image < number; image++) {
        const Window *window = &batch->windows[image];
        int64_t height = max_of(window->bottom - window->top, 0);
        int64_t width = max_of(window->right - window->left, 0);
        batch->room[image] = pixels_room(batch, image, height, width);
        widest_part = max_of(widest_part, floor_div(width, batch->factors[image]));
        widest = max_of(widest, batch->pictures[image].width);
    }
    return max_of(jpeg_planes_room(widest_part), png_room(widest));
}
