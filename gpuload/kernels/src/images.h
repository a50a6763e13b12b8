// Decoding the images of a batch, each by its format: images.c.

#pragma once

#include "jpeg.h"
#include "png.h"

typedef struct {
    const Span *files;
    const Span *points;       // seek points of each; size 0: none
    const Window *windows;    // the part needed, in pixels of the stored image
    const int64_t *factors;   // 1, 2, 4 or 8: may be decoded at 1/factor of its size
    int64_t *room;            // bytes for the pixels of each: `image_room`
    Picture *pictures;        // with the height and width of the index; `pixels` is NULL for those to decode
    int64_t all_upright;      // whether all are known to be upright, whatever the Exif data of JPEGs say
    int64_t layout;           // of the pixels
} ImageBatch;

// Sets `room` for `number` images, and returns the bytes that the decoding of one needs beside.
EXPORT int64_t image_room(const ImageBatch *batch, int64_t number);

// What a thread decodes with.
typedef struct {
    JpegScratch jpeg;
    PngScratch png;
} ImageScratch;

typedef struct {
    uint8_t *memory;  // for the pixels of the images of a call, and for what one image needs beside
    ImageScratch *scratch;
} ImageThread;

// Decodes images begin..end-1 of a batch, one behind the other in the memory of the thread, and completes their pictures.
// A picture stays as it is where the image is not decoded here, is of another size, or has any fault.
void decode_images(const ImageBatch *batch, const ImageThread *thread, int64_t begin, int64_t end);
