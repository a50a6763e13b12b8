// The decoder of baseline JPEGs (ITU-T T.81): of 8 bits, gray or YCbCr, with all components in one scan and sampling 4:4:4,
// 4:2:2 or 4:2:0; whole or in part, at 1/1 to 1/8 of the size. Its pixels are libjpeg-turbo's, bit for bit.

#pragma once

#include "picture.h"

enum Marker {
    SOF0 = 0xC0, SOF1 = 0xC1, SOF2 = 0xC2, DHT = 0xC4, RST0 = 0xD0, SOI = 0xD8, EOI = 0xD9, SOS = 0xDA, DQT = 0xDB,
    DRI = 0xDD, APP0 = 0xE0, APP1 = 0xE1, APP14 = 0xEE, APP15 = 0xEF, COM = 0xFE,
};

// Headers: jpeg_header.c.

// An Exif orientation, 1 to 8: plus ORIENTATION_DISPUTED if some readers pass over it, ORIENTATION_UNCLEAR if that cannot
// be told.
enum { UPRIGHT = 1, ORIENTATION_DISPUTED = 16, ORIENTATION_UNCLEAR = 31 };
EXPORT int64_t exif_orientation(const uint8_t *tiff, int64_t size);

static inline int64_t load_two(const uint8_t *bytes) { return (int64_t)bytes[0] << 8 | bytes[1]; }

// The end of one definition of a Huffman table; 0 if it is invalid.
int64_t huffman_definition_end(const uint8_t *file, int64_t begin, int64_t end);

// Whether the content of a SOF segment is none that every decoder takes: 8 bits, 1, 3 or 4 components.
bool is_faulty_frame(const uint8_t *content, int64_t length);

// Tables that were defined before a scan, a bit for each; of the Huffman tables, four for DC and four for AC coefficients.
typedef struct {
    int64_t quantization, huffman;
} DefinedTables;

// Whether the content of a SOS segment has a fault. frame: the content of the SOF segment.
bool is_faulty_scan(const uint8_t *content, int64_t length, const uint8_t *frame, bool progressive, DefinedTables tables);

// Tables and bits: jpeg_bits.c.

enum {
    LOOKUP_BITS = 10,  // one in 200 to 400 codes is longer; a table takes 4 kB
    CODE_LENGTHS = 16,
    MOST_SYMBOLS = 256,
    READ_BYTES = 24 << 10,
};

typedef struct {
    uint32_t lookup[1 << LOOKUP_BITS];                  // entries: see jpeg_bits.c
    uint8_t definition[CODE_LENGTHS + MOST_SYMBOLS];    // that it was made of: counts of codes by length, and symbols
} HuffmanTable;

// The next bits of a scan.
typedef struct {
    const uint8_t *next;  // the next byte
    uint64_t unused;      // in its lowest 6 bits: how many bits before it are unused
    uint64_t bits;        // these, from the top
} BitReader;

// Coded bits copied from the file, without stuffed bytes.
typedef struct {
    uint8_t bytes[READ_BYTES];
    int64_t count;         // of them
    int64_t before;        // bytes of the scan, without stuffed ones, before them
    int64_t next_in_file;  // the next byte to copy
    int64_t limit;         // of the file: copying ends there
    bool has_ended;        // a marker, or the end, follows them
} CodedBytes;

// The tables of a component.
typedef struct {
    int64_t quantization, dc, ac;
} Component;

// The memory of one thread, which begins at a line of the cache (CACHE_LINE bytes). What it holds of one image must not show
// in the next.
enum { CACHE_LINE = 64 };
typedef struct {
    _Alignas(CACHE_LINE) int32_t coefficients[64];  // of one block, by row; vectors of them lie within lines
    int32_t quantization[4][64];                    // in zigzag order
    HuffmanTable tables[8];                         // four for DC coefficients, four for AC coefficients
    Component components[3];
    BitReader reader;
    int64_t dc_before[3];                           // the DC coefficient of the block before, of each component
    CodedBytes coded;
} JpegScratch;

void define_huffman_table(const uint8_t *definition, int64_t symbols, bool is_dc, HuffmanTable *table);

enum BlockResult { FAULT = -1, ONLY_DC = 0, MORE = 1 };

// Reads a block into `coefficients`, dequantised. dc_before: of its component. ONLY_DC if all AC coefficients are 0.
enum BlockResult read_block(
    BitReader *reader, int64_t *dc_before, const HuffmanTable *dc, const HuffmanTable *ac, const int32_t *quantization,
    int32_t *coefficients
);

// Reads past a block that is not needed. FAULT or ONLY_DC.
enum BlockResult skip_block(BitReader *reader, int64_t *dc_before, const HuffmanTable *dc, const HuffmanTable *ac);

// Coefficients to a block of `size` × `size` samples, 8, 4, 2 or 1: jpeg_dct.c.
void inverse_dct(const int32_t *coefficients, int64_t size, bool has_ac, uint8_t *samples, int64_t stride);

// The image of a file: jpeg_frame.c.

typedef struct {
    int64_t begin;             // where in the file its coded pixels begin; 0: it is not decoded here
    int64_t height, width;     // in pixels
    int64_t components;        // 1 or 3
    int64_t across, down;      // blocks of luma in an MCU, in which each chroma component has one block
    int64_t rows, columns;     // of MCUs
    int64_t restart_interval;  // MCUs between two restart markers, or 0
    int64_t orientation;       // UPRIGHT, also without Exif data; another number where it is not, or not for all readers
} Frame;

// Reads up to the first scan, and fills `scratch` with tables and components.
Frame read_frame(Span file, JpegScratch *scratch);

// A part of an image: jpeg_part.c.

// Samples of a component, as many rows as are needed at a time: row y is in slot y % rows.
typedef struct {
    uint8_t *samples;       // the first of slot 0
    int64_t stride;         // bytes from slot to slot
    int64_t rows;           // slots, a power of two
    int64_t block;          // side of a block, 8, 4, 2 or 1
    int64_t top, left;      // where the first sample lies in the component
    int64_t height, width;  // of the component
} Plane;

// A part of an image at 1/factor of its size.
typedef struct {
    int64_t first_row, first_column, end_row, end_column;  // the MCUs that are decoded
    int64_t top, left, height, width;                      // the pixels that are made of them
    int64_t across, down;                                  // luma samples for each chroma sample
    Plane luma, blue, red;
} Part;

// The part that a window needs. planes: memory, as much as `jpeg_room` says.
Part make_part(const Frame *frame, const Window *window, int64_t factor, uint8_t *planes);

// How many rows of pixels are complete once the planes hold this row of MCUs.
int64_t ready_rows(const Frame *frame, const Part *part, int64_t row);

// Repeats the first and the last chroma sample of each line in a row of MCUs, where it is at the image's edge.
void repeat_edges(const Frame *frame, const Part *part, int64_t row);

// Rows begin..end-1 of the part to RGB. pixels: of the part.
void convert_rows(const Frame *frame, const Part *part, int64_t begin, int64_t end, uint8_t *pixels);

// The coded pixels: jpeg_scan.c.

void begin_scan(Span file, const Frame *frame, JpegScratch *scratch);

// Prepares for the MCU that begins at this bit of the file, and to read no bits from `end` on. The DC coefficients before
// it are the caller's.
void seek_scan(Span file, JpegScratch *scratch, int64_t bit, int64_t end);

// Whether exactly the bits before this bit of the file were read, to which `seek_scan` set the end. at_marker: a restart
// marker begins there, before which some bits of a byte may be left.
bool has_read_up_to(const JpegScratch *scratch, int64_t end, bool at_marker);

// Bits used of those in `coded.bytes`, and the same with the rest of the last byte.
int64_t used_bits(const JpegScratch *scratch);
int64_t used_whole_bytes_in_bits(const JpegScratch *scratch);

// Whether no more bits were used than there are, and, after the whole scan, the end of the image follows.
bool ends_well(Span file, const JpegScratch *scratch, bool whole);

bool is_after_restart_marker(const Frame *frame, int64_t mcu);

typedef struct {
    int64_t begin, end;
} Columns;

// Decodes what a part needs of these columns of a row of MCUs into its planes. False if the row has a fault.
bool read_row(Span file, const Frame *frame, JpegScratch *scratch, const Part *part, int64_t row, Columns columns);

// Reads past an MCU. False if it has a fault.
bool skip_mcu(Span file, const Frame *frame, JpegScratch *scratch, int64_t mcu);

// Pictures: jpeg_decode.c.

// Decodes the part of an image that a window needs, at 1/factor of its size, as RGB. points: what jpeg_points.c tells of it;
// size 0: nothing. takes_turned: whether it is known to be upright, whatever its Exif data say. planes: memory, as much as
// `jpeg_planes_room` says. pixels: memory for those of the part. picture: with the height and width of the index. False if the
// image is not decoded here, is of another size, or has any fault.
bool decode_jpeg(
    Span file, Span points, const Window *window, int64_t factor, bool takes_turned, JpegScratch *scratch, uint8_t *planes,
    uint8_t *pixels, Picture *picture
);

// Bytes for the pixels of a part so large, and for the planes of parts up to this width.
int64_t jpeg_pixels_room(int64_t height, int64_t width);
int64_t jpeg_planes_room(int64_t width);
