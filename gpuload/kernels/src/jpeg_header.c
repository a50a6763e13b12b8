// The headers of JPEGs, read strictly: whether a file is sound as far as can be told without decoding it, by libjpeg's rules
// (ITU-T T.81, annex B), and every decoder shows it alike. DALI 2.4 may crash the process on an image that libjpeg refuses.
// It does not raise on one that passes: its segments are complete and valid, each table that a scan uses is defined, and the
// file does not end early. And it shows what Pillow shows: XMP does not turn the image, which DALI passes over, and CMYK is
// marked by an Adobe segment, without which DALI takes no ink for white, and Pillow for black. Damage to the coded bits is not
// seen; decoders show it.

#include "jpeg.h"

// Exif: the TIFF structure in an APP1 segment (CIPA DC-008, 4.6).

enum { ORIENTATION_TAG = 0x0112, TYPE_SHORT = 3, ENTRY_BYTES = 12 };

static int64_t load_16(const uint8_t *bytes, bool is_big_endian) {
    return is_big_endian ? bytes[0] << 8 | bytes[1] : bytes[1] << 8 | bytes[0];
}

static int64_t load_32(const uint8_t *bytes, bool is_big_endian) {
    int64_t first = load_16(bytes, is_big_endian);
    int64_t second = load_16(bytes + 2, is_big_endian);
    return is_big_endian ? first << 16 | second : second << 16 | first;
}

// Whether a value lies in the segment; readers differ on what they do where it does not, and some pass over all Exif data.
static bool is_value_inside(int64_t type, int64_t count, int64_t offset, int64_t size) {
    static const uint8_t TYPE_BYTES[] = {0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8};
    if (type < 1 || type > 12)
        return false;
    int64_t bytes = count * TYPE_BYTES[type];
    return bytes <= 4 || offset + bytes <= size;
}

// Every entry of the first directory is looked at, none of what they point to.
int64_t exif_orientation(const uint8_t *tiff, int64_t size) {
    if (size < 8 || tiff[0] != tiff[1] || (tiff[0] != 'I' && tiff[0] != 'M'))
        return ORIENTATION_UNCLEAR;
    bool is_big_endian = tiff[0] == 'M';
    if (load_16(tiff + 2, is_big_endian) != 42)
        return ORIENTATION_UNCLEAR;
    int64_t directory = load_32(tiff + 4, is_big_endian);
    if (directory < 8 || directory + 2 > size)
        return ORIENTATION_UNCLEAR;
    int64_t entries = load_16(tiff + directory, is_big_endian);
    if (directory + 2 + ENTRY_BYTES * entries > size)
        return ORIENTATION_UNCLEAR;
    int64_t orientation = UPRIGHT;
    bool is_clear = true;
    bool has_orientation = false;
    for (int64_t number = 0; number < entries; number++) {
        const uint8_t *entry = tiff + directory + 2 + ENTRY_BYTES * number;
        int64_t type = load_16(entry + 2, is_big_endian);
        int64_t count = load_32(entry + 4, is_big_endian);
        int64_t offset = load_32(entry + 8, is_big_endian);
        is_clear = is_clear && is_value_inside(type, count, offset, size);
        if (load_16(entry, is_big_endian) != ORIENTATION_TAG)
            continue;
        orientation = load_16(entry + 8, is_big_endian);
        if (has_orientation || type != TYPE_SHORT || count != 1 || orientation > 8)
            return ORIENTATION_UNCLEAR;
        has_orientation = true;
    }
    return is_clear && orientation > 0 ? orientation : orientation + ORIENTATION_DISPUTED;
}

int64_t huffman_definition_end(const uint8_t *file, int64_t begin, int64_t end) {
    if (begin + 1 + CODE_LENGTHS > end || file[begin] >> 4 > 1 || (file[begin] & 15) > 3)
        return 0;
    bool is_dc = file[begin] >> 4 == 0;
    int64_t symbols = 0;
    int64_t code = 0;
    for (int length = 1; length <= CODE_LENGTHS; length++) {
        int64_t codes = file[begin + length];
        symbols += codes;
        code += codes;
        if (codes > 0 && code >= 1 << length)  // also a code of ones alone, which T.81 reserves
            return 0;
        code <<= 1;
    }
    int64_t first_symbol = begin + 1 + CODE_LENGTHS;
    if (symbols > MOST_SYMBOLS || first_symbol + symbols > end)
        return 0;
    for (int64_t place = first_symbol; is_dc && place < first_symbol + symbols; place++)
        if (file[place] > 15)
            return 0;
    return first_symbol + symbols;
}

// Content of a SOF segment: precision, height, width, components, and of each component its name, its sampling and its
// quantisation table.
enum { FRAME_COMPONENTS = 5, FRAME_HEAD = 6, FRAME_COMPONENT_BYTES = 3 };

bool is_faulty_frame(const uint8_t *content, int64_t length) {
    if (length < FRAME_HEAD + FRAME_COMPONENT_BYTES || content[0] != 8)
        return true;
    int64_t components = content[FRAME_COMPONENTS];
    if ((components != 1 && components != 3 && components != 4) || length != FRAME_HEAD + FRAME_COMPONENT_BYTES * components)
        return true;
    int64_t most_across = 1;
    int64_t most_down = 1;
    for (int64_t number = 0; number < components; number++) {
        const uint8_t *component = content + FRAME_HEAD + FRAME_COMPONENT_BYTES * number;
        int64_t across = component[1] >> 4;
        int64_t down = component[1] & 15;
        if (across < 1 || across > 4 || down < 1 || down > 4 || component[2] > 3)
            return true;
        most_across = max_of(most_across, across);
        most_down = max_of(most_down, down);
        for (int64_t other = 0; other < number; other++)
            if (content[FRAME_HEAD + FRAME_COMPONENT_BYTES * other] == component[0])
                return true;
    }
    for (int64_t number = 0; number < components; number++) {
        uint8_t sampling = content[FRAME_HEAD + FRAME_COMPONENT_BYTES * number + 1];
        if (most_across % (sampling >> 4) != 0 || most_down % (sampling & 15) != 0)
            return true;
    }
    return false;
}

// The place in a frame's content of the component with this name; the last one, if several have it. 0: none has.
static int64_t find_component(const uint8_t *frame, uint8_t name) {
    int64_t place = 0;
    for (int64_t number = 0; number < frame[FRAME_COMPONENTS]; number++)
        if (frame[FRAME_HEAD + FRAME_COMPONENT_BYTES * number] == name)
            place = FRAME_HEAD + FRAME_COMPONENT_BYTES * number;
    return place;
}

// What a scan codes: its first and last coefficient in zigzag order, and the bits of its successive approximation. Whether
// T.81, G.1.1 does not allow it.
static bool is_faulty_progression(int64_t components, int64_t first, int64_t last, uint8_t approximation) {
    int64_t high = approximation >> 4;
    int64_t low = approximation & 15;
    if (low > 13 || (high != 0 && high != low + 1) || last > 63 || first > last)
        return true;
    return (first == 0 && last != 0) || (first > 0 && components != 1);
}

bool is_faulty_scan(const uint8_t *content, int64_t length, const uint8_t *frame, bool progressive, DefinedTables tables) {
    if (length < 6)  // before anything is read: the file may end here
        return true;
    int64_t components = content[0];
    if (components < 1 || components > 4 || length != 4 + 2 * components)
        return true;
    int64_t first = content[length - 3];
    int64_t last = content[length - 2];
    uint8_t approximation = content[length - 1];
    bool needs_dc = true;
    bool needs_ac = true;
    if (progressive) {
        if (is_faulty_progression(components, first, last, approximation))
            return true;
        needs_dc = first == 0 && approximation >> 4 == 0;
        needs_ac = first > 0;
    } else if (first != 0 || last != 63 || approximation != 0) {
        return true;
    }
    int64_t blocks = 0;
    int64_t place_before = 0;
    for (int64_t number = 0; number < components; number++) {
        uint8_t selected = content[2 + 2 * number];
        int64_t dc = selected >> 4;
        int64_t ac = selected & 15;
        int64_t place = find_component(frame, content[1 + 2 * number]);
        if (place <= place_before || dc > 3 || ac > 3 || !(tables.quantization >> frame[place + 2] & 1))
            return true;
        if ((needs_dc && !(tables.huffman >> dc & 1)) || (needs_ac && !(tables.huffman >> (4 + ac) & 1)))
            return true;
        place_before = place;
        blocks += (frame[place + 1] >> 4) * (frame[place + 1] & 15);
    }
    return components > 1 && blocks > 10;
}

// Where the next marker begins, apart from stuffed bytes and restart markers; `size` where there is none.
static int64_t next_marker(const uint8_t *file, int64_t begin, int64_t size) {
    while (begin + 1 < size) {
        const uint8_t *marker = memchr(file + begin, 0xFF, (size_t)(size - 1 - begin));
        if (marker == NULL)
            return size;
        if (marker[1] != 0 && (marker[1] & 0xF8) != RST0)
            return marker - file;
        begin = marker - file + 1;
    }
    return size;
}

// What a check finds: gpuload/kernels/jpeg.py has the same numbers.
enum Soundness { SOUND, NO_JPEG, BAD_HEADER, NO_END, OTHER_SIZE, TURNED_BY_XMP, UNMARKED_CMYK };

// What the segments so far have said.
typedef struct {
    const uint8_t *frame;  // the content of the SOF segment, or NULL
    bool is_progressive;
    DefinedTables tables;
    bool has_exif;
    int64_t orientation;
    bool is_turned_by_xmp;
    bool has_adobe;
    int64_t scans;
} Header;

static bool define_tables(const uint8_t *file, int64_t begin, int64_t end, Header *header) {
    while (begin < end) {
        int64_t table = (file[begin] >> 4) * 4 + (file[begin] & 15);
        begin = huffman_definition_end(file, begin, end);
        if (begin == 0)
            return false;
        header->tables.huffman |= 1 << table;
    }
    return true;
}

static bool define_quantization(const uint8_t *content, int64_t length, Header *header) {
    if (length % 65 != 0)
        return false;
    for (int64_t place = 0; place < length; place += 65) {
        if (content[place] > 3)
            return false;
        header->tables.quantization |= 1 << content[place];
    }
    return true;
}

// Whether XMP turns the image: `tiff:Orientation="n"` or `<tiff:Orientation>n`, as Pillow looks for it, with n > 1.
static bool turns_image(const uint8_t *xmp, int64_t length) {
    static const char NAME[] = ":Orientation";
    enum { NAME_BYTES = sizeof NAME - 1 };
    for (int64_t place = 0; place + NAME_BYTES < length; place++) {
        const uint8_t *value = xmp + place + NAME_BYTES;
        const uint8_t *end = xmp + length;
        if (memcmp(xmp + place, NAME, NAME_BYTES) != 0)
            continue;
        if (end - value > 2 && value[0] == '=' && value[1] == '"')
            value += 2;
        else if (end - value > 1 && value[0] == '>')
            value += 1;
        else
            continue;
        if (value[0] >= '2' && value[0] <= '8')
            return true;
    }
    return false;
}

// An APP1 segment: Exif data, or XMP.
static bool read_app1(const uint8_t *content, int64_t length, Header *header) {
    if (length < 6 || (content[0] | 32) != 'e' || (content[1] | 32) != 'x') {
        header->is_turned_by_xmp |= turns_image(content, length);
        return true;
    }
    // One segment, and named as every reader expects it: else they differ on whether it counts.
    if (memcmp(content, "Exif\0", 6) != 0 || header->has_exif)
        return false;
    header->has_exif = true;
    header->orientation = exif_orientation(content + 6, length - 6);
    return header->orientation <= ORIENTATION_DISPUTED + 4;  // from 5 on height and width change places
}

// What is wrong with an image, all of whose headers are right.
static enum Soundness check_image(const Header *header, Size size) {
    int64_t height = load_two(header->frame + 1);
    int64_t width = load_two(header->frame + 3);
    int64_t orientation = header->orientation & ~ORIENTATION_DISPUTED;
    if (header->is_turned_by_xmp && orientation <= UPRIGHT)  // else Exif decides
        return TURNED_BY_XMP;
    if (header->frame[FRAME_COMPONENTS] == 4 && !header->has_adobe)
        return UNMARKED_CMYK;
    bool has_changed_sides = orientation > 4;
    bool is_of_size = (has_changed_sides ? width : height) == size.height && (has_changed_sides ? height : width) == size.width;
    return is_of_size ? SOUND : OTHER_SIZE;
}

// Whether a segment other than a scan is as it should be.
static bool read_segment(const uint8_t *file, int64_t begin, int64_t end, uint8_t marker, Header *header) {
    const uint8_t *content = file + begin;
    int64_t length = end - begin;
    switch (marker) {
    case DHT:
        return define_tables(file, begin, end, header);
    case DQT:
        return define_quantization(content, length, header);
    case SOF0:
    case SOF1:
    case SOF2:
        if (header->frame != NULL || is_faulty_frame(content, length))
            return false;
        header->frame = content;
        header->is_progressive = marker == SOF2;
        return true;
    case APP1:
        return read_app1(content, length, header);
    case APP14:
        header->has_adobe |= length >= 12 && memcmp(content, "Adobe", 5) == 0;
        return true;
    case DRI:
        return length == 2;
    default:
        return (marker >= APP0 && marker <= APP15) || marker == COM;
    }
}

static enum Soundness check_jpeg(Span span, Size size) {
    const uint8_t *file = span.bytes;
    if (span.size < 4 || file[0] != 0xFF || file[1] != SOI)
        return NO_JPEG;
    Header header = {0};
    for (int64_t place = 2; place + 4 <= span.size;) {
        uint8_t marker = file[place + 1];
        if (file[place] != 0xFF)
            return BAD_HEADER;
        if (marker == EOI)
            return header.scans > 0 ? SOUND : BAD_HEADER;
        int64_t begin = place + 4;
        int64_t end = place + 2 + load_two(file + place + 2);
        if (marker < SOF0 || end < begin)
            return BAD_HEADER;
        if (end > span.size)
            return NO_END;
        place = end;
        if (marker != SOS) {
            if (!read_segment(file, begin, end, marker, &header))
                return BAD_HEADER;
            continue;
        }
        if (header.frame == NULL)
            return BAD_HEADER;
        if (is_faulty_scan(file + begin, end - begin, header.frame, header.is_progressive, header.tables))
            return BAD_HEADER;
        if (header.scans++ == 0) {
            enum Soundness of_image = check_image(&header, size);
            if (of_image != SOUND)
                return of_image;
        }
        place = next_marker(file, end, span.size);
        if (place + 2 > span.size)
            return NO_END;
        if (file[place + 1] == EOI)
            return SOUND;
    }
    return NO_END;
}

// Checks files in memory. heights, widths: that they should have, upright. results: of each, a `Soundness`.
EXPORT void check_jpegs(
    const Span *files, const int32_t *heights, const int32_t *widths, int64_t number, int8_t *results
) {
    for (int64_t file = 0; file < number; file++)
        results[file] = (int8_t)check_jpeg(files[file], (Size){heights[file], widths[file]});
}
