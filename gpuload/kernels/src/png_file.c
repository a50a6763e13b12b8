#include "checksum.h"
#include "jpeg.h"
#include "png.h"

enum {
    SIGNATURE_BYTES = 8,
    CHUNK_BYTES = 12,    // its length, its kind and its checksum
    HEADER_BYTES = 13,   // the content of IHDR
    ANCILLARY = 0x20,    // the bit of the first letter of chunks that readers may pass over
};

static const uint8_t SIGNATURE[SIGNATURE_BYTES] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};

static uint32_t load_four(const uint8_t *bytes) {
    uint32_t word;
    memcpy(&word, bytes, sizeof word);
    return __builtin_bswap32(word);
}

static bool is_kind(const uint8_t *kind, const char *name) { return memcmp(kind, name, 4) == 0; }

// Whether the content of IHDR is valid. Of one that is, height, width, depth, colour and interlacing are set.
static bool read_image_header(Span content, Png *png) {
    static const int64_t depths[7] = {[GRAY] = 31, [RGB] = 24, [PALETTE] = 15, [GRAY_ALPHA] = 24, [RGB_ALPHA] = 24};
    if (content.size != HEADER_BYTES)
        return false;
    png->width = load_four(content.bytes);
    png->height = load_four(content.bytes + 4);
    png->depth = content.bytes[8];
    png->color = content.bytes[9];
    png->interlaced = content.bytes[12] == 1;
    // Depths are powers of two, so that those which a colour type may have are bits: 1, 2, 4, 8, 16.
    bool is_power = png->depth > 0 && png->depth <= 16 && (png->depth & (png->depth - 1)) == 0;
    if (!is_power || png->color > RGB_ALPHA || !(depths[png->color] >> __builtin_ctzll((uint64_t)png->depth) & 1))
        return false;
    return content.bytes[10] == 0 && content.bytes[11] == 0 && content.bytes[12] <= 1;
}

static bool contains(Span content, const char *text) {
    int64_t length = (int64_t)strlen(text);
    for (int64_t at = 0; at + length <= content.size; at++)
        if (memcmp(content.bytes + at, text, (size_t)length) == 0)
            return true;
    return false;
}

static bool contains_xmp(Span content) {
    for (int64_t at = 0; at + 3 <= content.size; at++)
        if ((content.bytes[at] | 32) == 'x' && (content.bytes[at + 1] | 32) == 'm' && (content.bytes[at + 2] | 32) == 'p')
            return true;
    return false;
}

// Whether a chunk may turn the image, or make another one of it: gpuload/headers/png.py says how for texts.
static bool may_change(const uint8_t *kind, Span content) {
    if (is_kind(kind, "acTL"))
        return true;
    if (is_kind(kind, "eXIf"))
        return exif_orientation(content.bytes, content.size) != UPRIGHT;
    if (!is_kind(kind, "tEXt") && !is_kind(kind, "zTXt") && !is_kind(kind, "iTXt"))
        return false;
    if (contains(content, "rientation") || contains(content, "Raw profile type exif"))
        return true;
    return !is_kind(kind, "tEXt") && contains_xmp(content);
}

// What the chunks so far were.
typedef struct {
    bool has_palette, has_key, has_pixels, pixels_ended;
} Before;

// Takes note of a chunk that is needed. False if it may not be here.
static bool read_chunk(const uint8_t *kind, Span content, int64_t at, Before *before, Png *png) {
    bool is_pixels = is_kind(kind, "IDAT");
    before->pixels_ended = before->pixels_ended || (before->has_pixels && !is_pixels);
    if (is_pixels) {
        if (before->pixels_ended)
            return false;
        if (!before->has_pixels) {
            png->begin = at;
            png->begin_bytes = content.size;
        }
        before->has_pixels = true;
        return true;
    }
    if (is_kind(kind, "PLTE")) {
        bool is_first = !before->has_palette && !before->has_key && !before->has_pixels;
        before->has_palette = true;
        png->palette = content;
        return is_first;
    }
    if (is_kind(kind, "tRNS")) {
        bool is_first = !before->has_key && !before->has_pixels;
        before->has_key = true;
        png->transparency = content;
        return is_first && content.size > 0;
    }
    return kind[0] & ANCILLARY && !may_change(kind, content);
}

static bool is_sound(const uint8_t *chunk, int64_t size) { return crc_of(chunk + 4, size + 4) == load_four(chunk + 8 + size); }

Png read_png(Span file, bool trusts_pixels) {
    static const Png none;
    Png png = none;
    Before before = {false, false, false, false};
    if (file.size < SIGNATURE_BYTES || memcmp(file.bytes, SIGNATURE, SIGNATURE_BYTES) != 0)
        return none;
    for (int64_t at = SIGNATURE_BYTES; at + CHUNK_BYTES <= file.size;) {
        const uint8_t *chunk = file.bytes + at;
        const uint8_t *kind = chunk + 4;
        int64_t size = load_four(chunk);
        if (size > file.size - at - CHUNK_BYTES)
            return none;
        if (!(trusts_pixels && is_kind(kind, "IDAT")) && !is_sound(chunk, size))
            return none;
        Span content = {chunk + 8, size};
        if (at == SIGNATURE_BYTES) {
            if (!is_kind(kind, "IHDR") || !read_image_header(content, &png))
                return none;
        } else if (is_kind(kind, "IEND")) {
            return before.has_pixels ? png : none;
        } else if (!read_chunk(kind, content, at + 8, &before, &png)) {
            return none;
        }
        at += size + CHUNK_BYTES;
    }
    return none;
}

PixelsPlace find_pixels(Span file, const Png *png, int64_t at) {
    for (int64_t begin = png->begin; is_kind(file.bytes + begin - 4, "IDAT");) {
        int64_t size = load_four(file.bytes + begin - 8);
        if (at >= begin && at < begin + size)
            return (PixelsPlace){at, begin + size - at};
        begin += size + CHUNK_BYTES;
    }
    return (PixelsPlace){0, 0};
}

bool are_pixels_sound(Span file, const Png *png, int64_t begin, int64_t end) {
    for (int64_t at = png->begin; is_kind(file.bytes + at - 4, "IDAT") && at <= end;) {
        int64_t size = load_four(file.bytes + at - 8);
        if (at + size >= begin && !is_sound(file.bytes + at - 8, size))
            return false;
        at += size + CHUNK_BYTES;
    }
    return true;
}

static uint32_t load_little(const uint8_t *bytes) { return __builtin_bswap32(load_four(bytes)); }

PngPoint point_before(Span points, Span file, int64_t row) {
    PngPoint before = {0, 0};
    int64_t content = points.size - POINTS_END_BYTES;
    if (content < POINT_BYTES || content % POINT_BYTES != 0)
        return before;
    uint64_t file_bytes = (uint64_t)file.size;
    uint8_t size_bytes[8];
    memcpy(size_bytes, &file_bytes, 8);
    if ((crc_of(points.bytes, content) ^ crc_of(size_bytes, 8)) != load_little(points.bytes + content))
        return before;
    for (int64_t at = 0; at < content && load_little(points.bytes + at) <= row; at += POINT_BYTES)
        before = (PngPoint){load_little(points.bytes + at), load_little(points.bytes + at + 4)};
    return before;
}
