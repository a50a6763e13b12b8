#include "deflate_tables.h"

static uint32_t literal_entries[LITERAL_SYMBOLS];
static uint32_t distance_entries[DISTANCE_SYMBOLS];
static uint32_t precode_entries[PRECODE_SYMBOLS];

// A number of `extra` bits that follows a code: the entry of the code without its bits.
static uint32_t entry_of(int64_t least, int64_t extra) {
    return (uint32_t)least << VALUE_SHIFT | SPECIAL | (uint32_t)extra;
}

__attribute__((constructor)) static void make_entries(void) {
    for (uint32_t literal = 0; literal < END_OF_BLOCK; literal++)
        literal_entries[literal] = literal << VALUE_SHIFT | 1 << COUNT_SHIFT;
    literal_entries[END_OF_BLOCK] = SPECIAL | STOP;
    int64_t least = 3;
    for (int64_t length = 0; length < LENGTHS - 1; length++) {
        int64_t extra = length < 8 ? 0 : length / 4 - 1;
        literal_entries[FIRST_LENGTH + length] = entry_of(least, extra);
        least += 1LL << extra;
    }
    literal_entries[FIRST_LENGTH + LENGTHS - 1] = entry_of(258, 0);
    for (int64_t symbol = FIRST_LENGTH + LENGTHS; symbol < LITERAL_SYMBOLS; symbol++)
        literal_entries[symbol] = NO_CODE;
    least = 1;
    for (int64_t distance = 0; distance < DISTANCES; distance++) {
        int64_t extra = distance < 4 ? 0 : distance / 2 - 1;
        distance_entries[distance] = entry_of(least, extra);
        least += 1LL << extra;
    }
    for (int64_t symbol = DISTANCES; symbol < DISTANCE_SYMBOLS; symbol++)
        distance_entries[symbol] = NO_CODE;
    for (uint32_t symbol = 0; symbol < PRECODE_SYMBOLS; symbol++)
        precode_entries[symbol] = symbol << VALUE_SHIFT;
}

typedef struct {
    uint32_t *entries;
    int64_t bits;          // of the index of the first table
    const uint32_t *made;  // the entry of each symbol, without the bits of its code
} Table;

// The next code of a length, each of whose bits is in the place in which it is read.
static inline uint32_t next_code(uint32_t code, int64_t length) {
    uint32_t bit = 1U << (length - 1);
    while (code & bit) {
        code ^= bit;
        bit >>= 1;
    }
    return code | bit;
}

static inline uint32_t with_bits(uint32_t entry, int64_t length) {
    return entry + (uint32_t)length + (entry & SPECIAL ? (uint32_t)length << COUNT_SHIFT : 0);
}

// Symbols in the order of their codes, and how many there are of each length.
typedef struct {
    int64_t counts[MOST_CODE_BITS + 1];
    uint16_t symbols[LITERAL_SYMBOLS];
} Order;

// False if there are more codes than can be told apart, or fewer than are possible, but for a single one of one bit.
static bool sort_symbols(const uint8_t *lengths, int64_t symbols, Order *order) {
    memset(order->counts, 0, sizeof order->counts);
    for (int64_t symbol = 0; symbol < symbols; symbol++)
        order->counts[lengths[symbol]]++;
    order->counts[0] = 0;
    int64_t unused = 1;
    int64_t longest = 0;
    int64_t places[MOST_CODE_BITS + 2] = {0};
    for (int64_t length = 1; length <= MOST_CODE_BITS; length++) {
        unused = 2 * unused - order->counts[length];
        if (unused < 0)
            return false;
        longest = order->counts[length] > 0 ? length : longest;
        places[length + 1] = places[length] + order->counts[length];
    }
    for (int64_t symbol = 0; symbol < symbols; symbol++)
        if (lengths[symbol] > 0)
            order->symbols[places[lengths[symbol]]++] = (uint16_t)symbol;
    return unused == 0 || longest <= 1;
}

// The length of the longest code that begins as a code of this length does, of which `number` are left.
static int64_t bits_of_second(const Order *order, int64_t length, int64_t number, int64_t first_bits) {
    int64_t held = number;
    while (held < 1LL << (length - first_bits) && length < MOST_CODE_BITS) {
        length++;
        held = 2 * held + order->counts[length];
    }
    return length;
}

// Fills a table for codes of these lengths. False if they are no code.
static bool make_table(Table table, const uint8_t *lengths, int64_t symbols) {
    Order order;
    if (!sort_symbols(lengths, symbols, &order))
        return false;
    uint32_t code = 0;
    int64_t place = 0;
    int64_t filled = 1;
    table.entries[0] = NO_CODE;
    for (int64_t length = 1; length <= table.bits; length++) {
        memcpy(table.entries + filled, table.entries, (size_t)filled * sizeof *table.entries);
        filled *= 2;
        for (int64_t number = 0; number < order.counts[length]; number++, code = next_code(code, length))
            table.entries[code] = with_bits(table.made[order.symbols[place++]], length);
    }
    uint32_t prefix_mask = (1U << table.bits) - 1;
    uint32_t prefix = UINT32_MAX;
    int64_t begin = 0;
    int64_t next_begin = filled;
    int64_t more_bits = 0;
    for (int64_t length = table.bits + 1; length <= MOST_CODE_BITS; length++)
        for (int64_t number = order.counts[length]; number > 0; number--, code = next_code(code, length)) {
            if ((code & prefix_mask) != prefix) {
                prefix = code & prefix_mask;
                begin = next_begin;
                more_bits = bits_of_second(&order, length, number, table.bits) - table.bits;
                next_begin += 1LL << more_bits;
                table.entries[prefix] = (uint32_t)begin << VALUE_SHIFT | SPECIAL | SECOND | (uint32_t)more_bits << COUNT_SHIFT;
            }
            int64_t own_bits = length - table.bits;
            uint32_t entry = with_bits(table.made[order.symbols[place++]], own_bits);
            for (int64_t index = code >> table.bits; index < 1LL << more_bits; index += 1LL << own_bits)
                table.entries[begin + index] = entry;
        }
    return true;
}

// Joins literals whose codes lie together in the index of the first table. Without branches and out of a copy, so that
// compilers make vectors of it: with branches it took a seventh of the time of an image of 64×64.
static void join_literals(const uint32_t *restrict entries, uint32_t *restrict joined) {
    for (int index = 0; index < 1 << LITERAL_BITS; index++) {
        uint32_t first = entries[index];
        uint32_t bits = first & 255;
        uint32_t second = entries[index >> (bits & 15)];
        uint32_t pair = first + (second & 255) + (1 << COUNT_SHIFT) + (second >> VALUE_SHIFT << (VALUE_SHIFT + 8));
        bool is_pair = !((first | second) & SPECIAL) & (bits + (second & 255) <= LITERAL_BITS);
        joined[index] = is_pair ? pair : first;
    }
}

bool make_literal_table(DeflateTables *tables, const uint8_t *lengths, int64_t symbols) {
    if (!make_table((Table){tables->literals, LITERAL_BITS, literal_entries}, lengths, symbols))
        return false;
    memcpy(tables->single, tables->literals, sizeof tables->single);
    join_literals(tables->single, tables->literals);
    return true;
}

bool make_distance_table(DeflateTables *tables, const uint8_t *lengths, int64_t symbols) {
    return make_table((Table){tables->distances, DISTANCE_BITS, distance_entries}, lengths, symbols);
}

bool make_precode_table(DeflateTables *tables, const uint8_t lengths[PRECODE_SYMBOLS]) {
    return make_table((Table){tables->precode, PRECODE_BITS, precode_entries}, lengths, PRECODE_SYMBOLS);
}
