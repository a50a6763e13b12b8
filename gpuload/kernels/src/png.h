// The decoder of PNGs (W3C PNG, third edition): all colour types, depths and interlacing, whole or in part. Its pixels are
// those that Pillow gives for the mode of a set, bit for bit: see png_pixels.c.

#pragma once

#include "inflate.h"

enum PngColor { GRAY = 0, RGB = 2, PALETTE = 3, GRAY_ALPHA = 4, RGB_ALPHA = 6 };

// What the chunks of a file say: png_file.c.
typedef struct {
    int64_t height, width;  // in pixels
    int64_t depth, color;
    bool interlaced;
    Span palette;           // the content of the chunk PLTE; size 0: none
    Span transparency;      // of the chunk tRNS
    int64_t begin;          // where in the file the content of the first IDAT begins; 0: it is not decoded here
    int64_t begin_bytes;    // of that content
} Png;

// Values of a pixel.
static inline int64_t png_samples(const Png *png) {
    static const int64_t samples[RGB_ALPHA + 1] = {[GRAY] = 1, [RGB] = 3, [PALETTE] = 1, [GRAY_ALPHA] = 2, [RGB_ALPHA] = 4};
    return samples[png->color];
}

// Reads all chunks of a file, and compares their checksums, those of chunks that no pixel depends on, too, as Pillow does.
// trusts_pixels: not those of IDAT. A file that is turned or animated is not decoded here.
Png read_png(Span file, bool trusts_pixels);

// A place in the content of an IDAT, and how many bytes of that follow it.
typedef struct {
    int64_t at, left;
} PixelsPlace;

// The place of a byte of the file, `at` 0 if it lies in no IDAT; and whether the checksums of the chunks from that which holds
// one byte of the file to that which holds another are right.
PixelsPlace find_pixels(Span file, const Png *png, int64_t at);
bool are_pixels_sound(Span file, const Png *png, int64_t begin, int64_t end);

// Seek points: places in the pixels at which decoding may begin, so that a crop costs its rows. The index holds them for each
// image as bytes, all numbers little-endian:
//
//     for each, in ascending order: uint32: the row; uint32: the byte of the file at which its deflate block begins
//     uint32: the CRC-32 of all before, exclusive or that of the size of the file as uint64
//
// Nothing behind a point repeats bytes before it, and its row has the filter None or Sub.
enum { POINT_BYTES = 8, POINTS_END_BYTES = 4 };
typedef struct {
    int64_t row, at;
} PngPoint;

// The last point at or above a row; row 0 of none, where the points are not those that were written for this file.
PngPoint point_before(Span points, Span file, int64_t row);

// Filters: png_filters.c.

// Some rows that lie one below the other, four of them, or two where a pixel has more than 4 bytes. Of each, LINE_BEFORE
// bytes before its begin and LINE_AFTER bytes after its end may be read, and of lines written.
enum { LINE_BEFORE = 32, LINE_AFTER = 64, MOST_ROWS = 4 };
typedef struct {
    int64_t number;
    int64_t pixels;       // of each
    int64_t pixel_bytes;  // 1 where several pixels share a byte
    const uint8_t *filtered[MOST_ROWS];  // after the byte that tells the filter
    const uint8_t *above;                // the line above the first row; zeros above the image
    uint8_t *lines[MOST_ROWS];           // the result
} FilteredRows;

static inline int64_t rows_at_once(int64_t pixel_bytes) { return pixel_bytes > 4 ? 2 : 4; }

// False where a filter is none of the five.
bool undo_filters(const FilteredRows *rows);

// Values of pixels: png_pixels.c.

// How the pixels of pictures lie in memory; gpuload/kernels/images.py has the same.
enum Layout { NO_LAYOUT = -1, AS_RGB, AS_RGBA, AS_GRAY_16, AS_CLASSES, LAYOUTS };

static inline int64_t layout_bytes(int64_t layout) {
    static const int64_t bytes[LAYOUTS] = {3, 4, 2, 1};
    return layout >= 0 && layout < LAYOUTS ? bytes[layout] : 0;
}

typedef struct {
    int64_t layout, color, depth;
    int64_t in_palette;        // colours
    bool has_key;              // whether pixels with these values are transparent
    int64_t key[3];
    uint8_t colors[256][4];    // red, green, blue, alpha of levels of 8 bits or fewer, and of a palette
} PngPixels;

enum { WRITTEN_BEYOND = 16 };

// False where there is no such conversion.
bool define_pixels(const Png *png, int64_t layout, PngPixels *made);

// Writes pixels begin..end-1 of a line. False where one is not in the palette. Up to WRITTEN_BEYOND bytes more are written.
bool convert_line(const PngPixels *made, const uint8_t *line, int64_t begin, int64_t end, uint8_t *pixels);

// Pictures: png_decode.c.

typedef struct {
    Inflater inflater;
    PngPixels pixels;
} PngScratch;

enum { MOST_WIDTH = 1 << 17 };

// Memory for what is inflated and for lines, of images up to this width.
int64_t png_room(int64_t width);

// Decodes the part of an image that a window needs. points: as above; size 0: none. memory: as `png_room` says. pixels: of the part. False if it is not
// decoded here, is of another size, or has any fault.
bool decode_png(
    Span file, Span points, const Window *window, int64_t layout, PngScratch *scratch, uint8_t *memory, uint8_t *pixels,
    Picture *picture
);
