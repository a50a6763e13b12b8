// The coded pixels of a JPEG to planes of samples, a row of MCUs at a time.

#include "jpeg.h"

enum {
    MCU_BYTES = 1536,             // an MCU takes no more: 6 blocks of 64 symbols of up to 31 bits
    SPARE_BYTES = MCU_BYTES + 64,  // zeros after the last bits
    ROOM_BYTES = READ_BYTES - SPARE_BYTES,
};

static bool has_ff(uint64_t word) {
    return ((~word - 0x0101010101010101) & word & 0x8080808080808080) != 0;  // whether an inverted byte is 0
}

// Fills `coded.bytes` with the next bytes of the file, without stuffed ones, up to a marker or the end.
static void copy_bytes(Span file, CodedBytes *coded) {
    int64_t place = coded->next_in_file;
    int64_t count = coded->count;
    coded->has_ended = false;
    while (count < ROOM_BYTES) {
        if (place + 8 <= coded->limit && count + 8 <= ROOM_BYTES) {
            uint64_t word = load_little_endian(file.bytes + place);
            if (!has_ff(word)) {
                memcpy(coded->bytes + count, &word, 8);
                place += 8;
                count += 8;
                continue;
            }
        }
        if (place >= coded->limit) {
            coded->has_ended = true;
            break;
        }
        uint8_t byte = file.bytes[place];
        if (byte == 0xFF) {
            if (place + 1 >= file.size || file.bytes[place + 1] != 0) {
                coded->has_ended = true;
                break;
            }
            place++;
        }
        coded->bytes[count++] = byte;
        place++;
    }
    if (coded->has_ended)
        memset(coded->bytes + count, 0, SPARE_BYTES);
    coded->next_in_file = place;
    coded->count = count;
}

// Starts at this byte of the file, with the state of a scan that begins.
static void begin_at(Span file, JpegScratch *scratch, int64_t place) {
    CodedBytes *coded = &scratch->coded;
    coded->next_in_file = place;
    coded->count = 0;
    copy_bytes(file, coded);
    scratch->reader = (BitReader){.next = coded->bytes + 7, .unused = 56, .bits = load_big_endian(coded->bytes)};
    memset(scratch->dc_before, 0, sizeof scratch->dc_before);
}

void begin_scan(Span file, const Frame *frame, JpegScratch *scratch) {
    scratch->coded.limit = file.size;
    scratch->coded.before = 0;
    begin_at(file, scratch, frame->begin);
}

void seek_scan(Span file, JpegScratch *scratch, int64_t bit, int64_t end) {
    scratch->coded.limit = min_of((end + 7) >> 3, file.size);
    begin_at(file, scratch, bit >> 3);
    scratch->reader.unused -= (uint64_t)(bit & 7);
    scratch->reader.bits <<= bit & 7;
}

int64_t used_bits(const JpegScratch *scratch) {
    return (scratch->reader.next - scratch->coded.bytes) * 8 - (int64_t)(scratch->reader.unused & 63);
}

int64_t used_whole_bytes_in_bits(const JpegScratch *scratch) { return (used_bits(scratch) + 7) & ~7LL; }

bool has_read_up_to(const JpegScratch *scratch, int64_t end, bool at_marker) {
    const CodedBytes *coded = &scratch->coded;
    int64_t unread = ((end + 7) >> 3) * 8 - end;
    int64_t used = at_marker ? used_whole_bytes_in_bits(scratch) : used_bits(scratch);
    return coded->next_in_file >= coded->limit && used == coded->count * 8 - unread;
}

// Whether this marker follows, and no unused whole byte is before it.
static bool is_at_marker(Span file, const JpegScratch *scratch, uint8_t marker) {
    const CodedBytes *coded = &scratch->coded;
    if (!coded->has_ended || used_whole_bytes_in_bits(scratch) != coded->count * 8)
        return false;
    return coded->next_in_file + 1 < file.size && file.bytes[coded->next_in_file + 1] == marker;
}

bool ends_well(Span file, const JpegScratch *scratch, bool whole) {
    if (whole)
        return is_at_marker(file, scratch, EOI);
    return !scratch->coded.has_ended || used_bits(scratch) <= scratch->coded.count * 8;
}

bool is_after_restart_marker(const Frame *frame, int64_t mcu) {
    return frame->restart_interval != 0 && mcu != 0 && mcu % frame->restart_interval == 0;
}

// Copies bits for an MCU, where needed. False if the file ended before, or a restart marker is missing.
static bool supply_bits(Span file, const Frame *frame, JpegScratch *scratch, int64_t mcu) {
    CodedBytes *coded = &scratch->coded;
    if (is_after_restart_marker(frame, mcu)) {
        int64_t turn = mcu / frame->restart_interval - 1;
        if (!is_at_marker(file, scratch, (uint8_t)(RST0 + (turn & 7))))
            return false;
        coded->before += coded->count;
        begin_at(file, scratch, coded->next_in_file + 2);
    }
    int64_t begin = scratch->reader.next - coded->bytes;
    if (begin + MCU_BYTES <= coded->count)
        return true;
    if (coded->has_ended)
        return used_bits(scratch) <= coded->count * 8;
    memmove(coded->bytes, coded->bytes + begin, (size_t)(coded->count - begin));
    coded->count -= begin;
    coded->before += begin;
    copy_bytes(file, coded);
    scratch->reader.next = coded->bytes;
    return true;
}

// Whether the next MCU needs `supply_bits`.
static bool needs_bits(const Frame *frame, const JpegScratch *scratch) {
    int64_t begin = scratch->reader.next - scratch->coded.bytes;
    return frame->restart_interval != 0 || begin + MCU_BYTES > scratch->coded.count;
}

// The component of a block of an MCU: those of luma come first.
static int64_t component_of(int64_t block, int64_t luma_blocks) { return max_of(block - luma_blocks + 1, 0); }

static int64_t blocks_of_mcu(const Frame *frame) {
    int64_t luma_blocks = frame->across * frame->down;
    return frame->components == 1 ? luma_blocks : luma_blocks + 2;
}

static bool skip_blocks(const Frame *frame, JpegScratch *scratch) {
    int64_t luma_blocks = frame->across * frame->down;
    int64_t blocks = blocks_of_mcu(frame);
    for (int64_t block = 0; block < blocks; block++) {
        int64_t number = component_of(block, luma_blocks);
        const Component *component = &scratch->components[number];
        const HuffmanTable *dc = &scratch->tables[component->dc];
        const HuffmanTable *ac = &scratch->tables[component->ac];
        if (skip_block(&scratch->reader, &scratch->dc_before[number], dc, ac) == FAULT)
            return false;
    }
    return true;
}

// Decodes the blocks of an MCU into the planes. row, column: of the MCU within the part.
static bool read_blocks(const Frame *frame, JpegScratch *scratch, const Part *part, int64_t row, int64_t column) {
    int64_t luma_blocks = frame->across * frame->down;
    int64_t blocks = blocks_of_mcu(frame);
    for (int64_t block = 0; block < blocks; block++) {
        int64_t number = component_of(block, luma_blocks);
        const Component *component = &scratch->components[number];
        const HuffmanTable *dc = &scratch->tables[component->dc];
        const HuffmanTable *ac = &scratch->tables[component->ac];
        const int32_t *quantization = scratch->quantization[component->quantization];
        int64_t *dc_before = &scratch->dc_before[number];
        enum BlockResult result = read_block(&scratch->reader, dc_before, dc, ac, quantization, scratch->coefficients);
        if (result == FAULT)
            return false;
        const Plane *plane = number == 0 ? &part->luma : number == 1 ? &part->blue : &part->red;
        int64_t block_row = row;
        int64_t block_column = column;
        if (number == 0) {
            block_row = row * frame->down + block / frame->across;
            block_column = column * frame->across + block % frame->across;
        }
        int64_t slot = (block_row * plane->block) & (plane->rows - 1);
        uint8_t *samples = plane->samples + slot * plane->stride + block_column * plane->block;
        inverse_dct(scratch->coefficients, plane->block, result == MORE, samples, plane->stride);
    }
    return true;
}

bool read_row(Span file, const Frame *frame, JpegScratch *scratch, const Part *part, int64_t row, Columns columns) {
    bool is_wanted_row = part->first_row <= row && row < part->end_row;
    for (int64_t column = columns.begin; column < columns.end; column++) {
        if (needs_bits(frame, scratch) && !supply_bits(file, frame, scratch, row * frame->columns + column))
            return false;
        bool is_wanted = is_wanted_row && part->first_column <= column && column < part->end_column;
        bool is_good = is_wanted ? read_blocks(frame, scratch, part, row - part->first_row, column - part->first_column)
                                 : skip_blocks(frame, scratch);
        if (!is_good)
            return false;
    }
    return true;
}

bool skip_mcu(Span file, const Frame *frame, JpegScratch *scratch, int64_t mcu) {
    if (needs_bits(frame, scratch) && !supply_bits(file, frame, scratch, mcu))
        return false;
    return skip_blocks(frame, scratch);
}
