// The segments before the coded pixels of a JPEG (ITU-T T.81, annex B), and whether it is decoded here.

#include "jpeg.h"

enum {
    MOST_PIXELS_A_SIDE = 65500,  // libjpeg's limit
    MOST_DC_BITS = 11,           // of a difference, with 8 bits (T.81, F.1.2.1.1); libjpeg-turbo has other pixels for larger ones
    NO_ADOBE = -1,
};
static const Frame NOT_DECODED_HERE = {0};

// What the segments so far have said.
typedef struct {
    const uint8_t *frame;  // the content of the SOF segment, or NULL
    DefinedTables tables;
    int64_t restart_interval;
    int64_t orientation;
    bool has_jfif;
    int64_t adobe_transform;  // or NO_ADOBE
} Header;

static bool read_quantization(const uint8_t *content, int64_t length, JpegScratch *scratch, Header *header) {
    if (length == 0)
        return false;
    for (int64_t place = 0; place < length; place += 65) {
        int64_t table = content[place];  // above 3 if its numbers have 16 bits
        if (table > 3 || place + 65 > length)
            return false;
        for (int index = 0; index < 64; index++)
            scratch->quantization[table][index] = content[place + 1 + index];
        header->tables.quantization |= 1 << table;
    }
    return true;
}

static bool read_huffman_tables(const uint8_t *file, int64_t begin, int64_t end, JpegScratch *scratch, Header *header) {
    if (begin == end)
        return false;
    for (int64_t place = begin; place < end;) {
        int64_t stop = huffman_definition_end(file, place, end);
        if (stop == 0)
            return false;
        bool is_dc = file[place] >> 4 == 0;
        int64_t table = (file[place] >> 4) * 4 + (file[place] & 15);
        int64_t first_symbol = place + 1 + CODE_LENGTHS;
        for (int64_t symbol = first_symbol; is_dc && symbol < stop; symbol++)
            if (file[symbol] > MOST_DC_BITS)
                return false;
        define_huffman_table(file + place + 1, stop - first_symbol, is_dc, &scratch->tables[table]);
        header->tables.huffman |= 1 << table;
        place = stop;
    }
    return true;
}

// An APP1 segment: Exif data, or XMP, which may give another orientation.
static int64_t read_orientation(const uint8_t *content, int64_t length, int64_t before) {
    bool is_first_exif = before == UPRIGHT && length >= 6 && memcmp(content, "Exif", 5) == 0;
    return is_first_exif ? exif_orientation(content + 6, length - 6) : ORIENTATION_UNCLEAR;
}

// Whether a segment other than a scan is one of an image that is decoded here.
static bool read_segment(
    const uint8_t *file, int64_t begin, int64_t end, uint8_t marker, JpegScratch *scratch, Header *header
) {
    const uint8_t *content = file + begin;
    int64_t length = end - begin;
    switch (marker) {
    case DQT:
        return read_quantization(content, length, scratch, header);
    case DHT:
        return read_huffman_tables(file, begin, end, scratch, header);
    case SOF0:
    case SOF1:
        if (header->frame != NULL || is_faulty_frame(content, length))
            return false;
        header->frame = content;
        return true;
    case DRI:
        if (length != 2)
            return false;
        header->restart_interval = load_two(content);
        return true;
    case APP0:
        if (length < 14 || memcmp(content, "JFIF", 5) != 0)
            return true;
        header->has_jfif = true;
        return content[5] == 1;  // the version; libjpeg warns of others
    case APP1:
        header->orientation = read_orientation(content, length, header->orientation);
        return true;
    case APP14:
        if (length >= 12 && memcmp(content, "Adobe", 5) == 0)
            header->adobe_transform = content[11];
        return true;
    default:
        return (marker >= APP0 && marker <= APP15) || marker == COM;
    }
}

// Whether three components are Y, Cb and Cr, by libjpeg's rules (jdapimin.c, default_decompress_parms).
static bool is_ycbcr(const Header *header) {
    const uint8_t *frame = header->frame;
    if (header->has_jfif || header->adobe_transform == 1)
        return true;
    return header->adobe_transform == NO_ADOBE && frame[6] == 1 && frame[9] == 2 && frame[12] == 3;
}

// The image of a SOF and a SOS segment without a fault. begin: of the coded pixels.
static Frame make_frame(const Header *header, const uint8_t *scan, int64_t begin, JpegScratch *scratch) {
    const uint8_t *content = header->frame;
    Frame frame = {
        .begin = begin,
        .height = load_two(content + 1),
        .width = load_two(content + 3),
        .components = content[5],
        .across = 1,
        .down = 1,
        .restart_interval = header->restart_interval,
        .orientation = header->orientation,
    };
    if (frame.height < 1 || frame.height > MOST_PIXELS_A_SIDE || frame.width < 1 || frame.width > MOST_PIXELS_A_SIDE)
        return NOT_DECODED_HERE;
    if (frame.components == 3) {  // a single component is not interleaved, whatever its sampling
        frame.across = content[7] >> 4;
        frame.down = content[7] & 15;
        bool has_whole_chroma = content[10] == 0x11 && content[13] == 0x11;
        if (!has_whole_chroma || frame.across > 2 || frame.down > frame.across || !is_ycbcr(header))
            return NOT_DECODED_HERE;
    } else if (frame.components != 1) {
        return NOT_DECODED_HERE;
    }
    for (int64_t number = 0; number < frame.components; number++) {
        uint8_t selected = scan[2 + 2 * number];
        scratch->components[number].quantization = content[8 + 3 * number];
        scratch->components[number].dc = selected >> 4;
        scratch->components[number].ac = 4 + (selected & 15);
    }
    frame.rows = ceil_div(frame.height, 8 * frame.down);
    frame.columns = ceil_div(frame.width, 8 * frame.across);
    return frame;
}

Frame read_frame(Span span, JpegScratch *scratch) {
    const uint8_t *file = span.bytes;
    if (span.size < 4 || file[0] != 0xFF || file[1] != SOI)
        return NOT_DECODED_HERE;
    Header header = {.orientation = UPRIGHT, .adobe_transform = NO_ADOBE};
    for (int64_t place = 2; place + 4 <= span.size;) {
        uint8_t marker = file[place + 1];
        if (file[place] != 0xFF)
            return NOT_DECODED_HERE;
        if (marker == 0xFF) {  // a fill byte
            place++;
            continue;
        }
        int64_t begin = place + 4;
        int64_t end = place + 2 + load_two(file + place + 2);
        if (end > span.size || end < begin)
            return NOT_DECODED_HERE;
        if (marker == SOS) {
            const uint8_t *scan = file + begin;
            if (header.frame == NULL || is_faulty_scan(scan, end - begin, header.frame, false, header.tables))
                return NOT_DECODED_HERE;
            if (scan[0] != header.frame[5])
                return NOT_DECODED_HERE;
            return make_frame(&header, scan, end, scratch);
        }
        if (!read_segment(file, begin, end, marker, scratch, &header))
            return NOT_DECODED_HERE;
        place = end;
    }
    return NOT_DECODED_HERE;
}
