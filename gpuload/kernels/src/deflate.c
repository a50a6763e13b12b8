#include "deflate.h"

enum {
    SYMBOLS_IN_BLOCK = 20000,
    WRITTEN_LITERALS = 286,
    MOST_PRECODE_BITS = 7,
    LITERAL_ALPHABET = 288,
};

void write_bits(BitWriter *writer, uint64_t value, int64_t number) {
    writer->bits |= value << writer->count;
    writer->count += number;
    if (writer->end - writer->next < 8) {
        writer->has_room = false;
        writer->bits = 0;
        writer->count = 0;
        return;
    }
    memcpy(writer->next, &writer->bits, 8);
    writer->next += writer->count >> 3;
    writer->bits >>= writer->count & ~7;
    writer->count &= 7;
}

void write_flush(BitWriter *writer) {
    write_bits(writer, 0, 3);
    write_bits(writer, 0, -writer->count & 7);
    write_bits(writer, 0xFFFF0000, 32);
}

// A code of an alphabet: of each symbol how many bits, and these, the first in the lowest place.
typedef struct {
    uint8_t lengths[LITERAL_ALPHABET];
    uint16_t bits[LITERAL_ALPHABET];
} Code;

// Symbols that occur, the rarest first.
static int64_t sort_by_count(const int64_t *counts, int64_t symbols, int64_t *order) {
    int64_t number = 0;
    for (int64_t symbol = 0; symbol < symbols; symbol++) {
        if (counts[symbol] == 0)
            continue;
        int64_t place = number++;
        for (; place > 0 && counts[order[place - 1]] > counts[symbol]; place--)
            order[place] = order[place - 1];
        order[place] = symbol;
    }
    return number;
}

// The depth of each leaf of Huffman's tree, the rarest first: nodes are made in the order of their weights, so that the two
// lightest are always among the next leaf and the next nodes.
static void find_depths(const int64_t *counts, const int64_t *order, int64_t leaves, int64_t *depths) {
    int64_t weights[LITERAL_ALPHABET];
    int64_t parents[2 * LITERAL_ALPHABET];
    int64_t leaf = 0;
    int64_t node = 0;
    for (int64_t made = 0; made < leaves - 1; made++) {
        weights[made] = 0;
        for (int child = 0; child < 2; child++) {
            bool takes_leaf = leaf < leaves && (node == made || counts[order[leaf]] <= weights[node]);
            weights[made] += takes_leaf ? counts[order[leaf]] : weights[node];
            parents[takes_leaf ? leaf++ : LITERAL_ALPHABET + node++] = made;
        }
    }
    int64_t node_depths[LITERAL_ALPHABET];
    node_depths[leaves - 2] = 0;
    for (int64_t made = leaves - 3; made >= 0; made--)
        node_depths[made] = node_depths[parents[LITERAL_ALPHABET + made]] + 1;
    for (int64_t place = 0; place < leaves; place++)
        depths[place] = node_depths[parents[place]] + 1;
}

// How many codes of each length there are, none longer than `most`: where the tree is deeper, its deepest leaves come up, and
// others go down until all fit.
static void count_lengths(const int64_t *depths, int64_t leaves, int64_t most, int64_t *numbers) {
    memset(numbers, 0, (MOST_CODE_BITS + 1) * sizeof *numbers);
    int64_t used = 0;
    for (int64_t place = 0; place < leaves; place++) {
        int64_t length = min_of(depths[place], most);
        numbers[length]++;
        used += 1LL << (most - length);
    }
    for (; used > 1LL << most; used--) {
        int64_t length = most - 1;
        while (numbers[length] == 0)
            length--;
        numbers[most]--;
        numbers[length]--;
        numbers[length + 1] += 2;
    }
}

static void make_code(int64_t *counts, int64_t symbols, int64_t most, Code *code) {
    int64_t order[LITERAL_ALPHABET];
    int64_t leaves = sort_by_count(counts, symbols, order);
    for (int64_t symbol = 0; leaves < 2; symbol++) {  // at least two symbols have codes, as all readers expect
        counts[symbol] = max_of(counts[symbol], 1);
        leaves = sort_by_count(counts, symbols, order);
    }
    int64_t depths[LITERAL_ALPHABET];
    int64_t numbers[MOST_CODE_BITS + 1];
    find_depths(counts, order, leaves, depths);
    count_lengths(depths, leaves, most, numbers);
    memset(code->lengths, 0, sizeof code->lengths);
    int64_t place = 0;
    for (int64_t length = most; length > 0; length--)
        for (int64_t number = 0; number < numbers[length]; number++)
            code->lengths[order[place++]] = (uint8_t)length;
    int64_t next = 0;
    for (int64_t length = 1; length <= most; length++, next <<= 1)
        for (int64_t symbol = 0; symbol < symbols; symbol++)
            if (code->lengths[symbol] == length)
                code->bits[symbol] = (uint16_t)(__builtin_bitreverse16((uint16_t)next++) >> (16 - length));
}

// A symbol and the number that follows it.
typedef struct {
    int64_t symbol, extra_bits, extra;
} Parts;

static inline int64_t bits_below(int64_t value) { return 63 - __builtin_clzll((uint64_t)value); }

static inline Parts parts_of_length(int64_t length) {
    int64_t above = length - 3;
    if (length == 258)
        return (Parts){285, 0, 0};
    if (above < 8)
        return (Parts){FIRST_LENGTH + above, 0, 0};
    int64_t extra_bits = bits_below(above) - 2;
    return (Parts){FIRST_LENGTH + 4 * (extra_bits + 1) + (above >> extra_bits & 3), extra_bits, above & ((1LL << extra_bits) - 1)};
}

static inline Parts parts_of_distance(int64_t distance) {
    int64_t above = distance - 1;
    if (above < 4)
        return (Parts){above, 0, 0};
    int64_t extra_bits = bits_below(above) - 1;
    return (Parts){2 * (extra_bits + 1) + (above >> extra_bits & 1), extra_bits, above & ((1LL << extra_bits) - 1)};
}

// The lengths of codes as symbols of the precode: runs of one length, and of zeros.
typedef struct {
    Parts symbols[WRITTEN_LITERALS + DISTANCES];
    int64_t number;
} Runs;

static void find_runs(const uint8_t *lengths, int64_t number, Runs *runs) {
    runs->number = 0;
    for (int64_t at = 0; at < number;) {
        int64_t run = 1;
        while (at + run < number && lengths[at + run] == lengths[at])
            run++;
        if (lengths[at] == 0 && run >= 3) {
            run = min_of(run, 138);
            runs->symbols[runs->number++] = run < 11 ? (Parts){17, 3, run - 3} : (Parts){18, 7, run - 11};
        } else if (at > 0 && lengths[at] == lengths[at - 1] && run >= 3) {
            run = min_of(run, 6);
            runs->symbols[runs->number++] = (Parts){16, 2, run - 3};
        } else {
            run = 1;
            runs->symbols[runs->number++] = (Parts){lengths[at], 0, 0};
        }
        at += run;
    }
}

static int64_t used_symbols(const uint8_t *lengths, int64_t symbols, int64_t least) {
    while (symbols > least && lengths[symbols - 1] == 0)
        symbols--;
    return symbols;
}

static void write_codes(BitWriter *writer, const Code *literals, const Code *distances) {
    static const uint8_t order[PRECODE_SYMBOLS] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    int64_t of_literals = used_symbols(literals->lengths, WRITTEN_LITERALS, FIRST_LENGTH);
    int64_t of_distances = used_symbols(distances->lengths, DISTANCES, 1);
    uint8_t lengths[WRITTEN_LITERALS + DISTANCES];
    memcpy(lengths, literals->lengths, (size_t)of_literals);
    memcpy(lengths + of_literals, distances->lengths, (size_t)of_distances);
    Runs runs;
    find_runs(lengths, of_literals + of_distances, &runs);
    int64_t counts[PRECODE_SYMBOLS] = {0};
    for (int64_t run = 0; run < runs.number; run++)
        counts[runs.symbols[run].symbol]++;
    Code precode;
    make_code(counts, PRECODE_SYMBOLS, MOST_PRECODE_BITS, &precode);
    int64_t in_precode = PRECODE_SYMBOLS;
    while (in_precode > 4 && precode.lengths[order[in_precode - 1]] == 0)
        in_precode--;
    write_bits(writer, (uint64_t)(of_literals - 257), 5);
    write_bits(writer, (uint64_t)(of_distances - 1), 5);
    write_bits(writer, (uint64_t)(in_precode - 4), 4);
    for (int64_t place = 0; place < in_precode; place++)
        write_bits(writer, precode.lengths[order[place]], 3);
    for (int64_t run = 0; run < runs.number; run++) {
        const Parts *parts = &runs.symbols[run];
        write_bits(writer, precode.bits[parts->symbol], precode.lengths[parts->symbol]);
        write_bits(writer, (uint64_t)parts->extra, parts->extra_bits);
    }
}

static void write_parts(BitWriter *writer, const Code *code, Parts parts) {
    int64_t length = code->lengths[parts.symbol];
    write_bits(writer, code->bits[parts.symbol] | (uint64_t)parts.extra << length, length + parts.extra_bits);
}

static void count_symbols(const Token *tokens, int64_t number, const uint8_t *bytes, int64_t *literals, int64_t *distances) {
    for (int64_t token = 0; token < number; token++) {
        const uint8_t *end = bytes + tokens[token].length;
        if (tokens[token].distance == 0) {
            for (; bytes < end; bytes++)
                literals[*bytes]++;
            continue;
        }
        literals[parts_of_length(tokens[token].length).symbol]++;
        distances[parts_of_distance(tokens[token].distance).symbol]++;
        bytes = end;
    }
    literals[END_OF_BLOCK] = 1;
}

// Two literals, of 30 bits at most, at a time.
static void write_literals(BitWriter *writer, const Code *code, const uint8_t *bytes, const uint8_t *end) {
    for (; end - bytes >= 2; bytes += 2) {
        int64_t length = code->lengths[bytes[0]];
        write_bits(writer, code->bits[bytes[0]] | (uint64_t)code->bits[bytes[1]] << length, length + code->lengths[bytes[1]]);
    }
    if (bytes < end)
        write_bits(writer, code->bits[*bytes], code->lengths[*bytes]);
}

static void write_block(BitWriter *writer, const Token *tokens, int64_t number, const uint8_t *bytes, bool is_last) {
    int64_t of_literals[WRITTEN_LITERALS] = {0};
    int64_t of_distances[DISTANCES] = {0};
    count_symbols(tokens, number, bytes, of_literals, of_distances);
    Code literals;
    Code distances;
    make_code(of_literals, WRITTEN_LITERALS, MOST_CODE_BITS, &literals);
    make_code(of_distances, DISTANCES, MOST_CODE_BITS, &distances);
    write_bits(writer, is_last, 1);
    write_bits(writer, 2, 2);
    write_codes(writer, &literals, &distances);
    for (int64_t token = 0; token < number; bytes += tokens[token].length, token++) {
        if (tokens[token].distance == 0) {
            write_literals(writer, &literals, bytes, bytes + tokens[token].length);
            continue;
        }
        write_parts(writer, &literals, parts_of_length(tokens[token].length));
        write_parts(writer, &distances, parts_of_distance(tokens[token].distance));
    }
    write_bits(writer, literals.bits[END_OF_BLOCK], literals.lengths[END_OF_BLOCK]);
}

void write_blocks(BitWriter *writer, const Token *tokens, int64_t number, const uint8_t *bytes, bool is_last) {
    int64_t begin = 0;
    do {
        int64_t end = begin;
        const uint8_t *next = bytes;
        for (int64_t symbols = 0; end < number && symbols < SYMBOLS_IN_BLOCK; end++) {
            symbols += tokens[end].distance == 0 ? tokens[end].length : 1;
            next += tokens[end].length;
        }
        write_block(writer, tokens + begin, end - begin, bytes, is_last && end == number);
        begin = end;
        bytes = next;
    } while (begin < number);
}
