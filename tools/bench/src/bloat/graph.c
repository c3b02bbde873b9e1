/* Builds a Kronecker graph with 2 to the power of argv[1] vertices and eight times as many edges, ranks its vertices
   and searches it in breadth from the first one. Prints the number of vertices with a wrong rank or distance, and a
   checksum of both. */
#include <igraph.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EDGES = 8 };
#define DAMPING 0.85

static uint64_t state = 1;

static uint64_t draw(void) {
    uint64_t x = state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static void fail(const char *doing) {
    fprintf(stderr, "error: %s\n", doing);
    exit(1);
}

/* The number of vertices whose rank is no fixed point of PageRank, or whose distance no breadth-first search gives. */
static long wrong(const igraph_vector_int_t *ends, const double *rank, const igraph_integer_t *distance,
                  long n, long m) {
    double *next = calloc(n, sizeof *next), dangling = 0;
    int32_t *degree = calloc(n, sizeof *degree);
    char *is_reached = calloc(n, 1), *is_far = calloc(n, 1);
    if (!next || !degree || !is_reached || !is_far) fail("take memory");
    const igraph_integer_t *end = VECTOR(*ends);
    for (long i = 0; i < m; i++) degree[end[2 * i]]++;
    for (long v = 0; v < n; v++)
        if (!degree[v]) dangling += rank[v];
    for (long i = 0; i < m; i++) {
        long a = end[2 * i], b = end[2 * i + 1];
        next[b] += rank[a] / degree[a];
        for (int way = 0; way < 2; way++, a ^= b, b ^= a, a ^= b) {
            is_reached[b] |= distance[a] >= 0 && distance[b] == distance[a] + 1;
            is_far[b] |= (distance[a] >= 0) != (distance[b] >= 0) || distance[b] > distance[a] + 1;
        }
    }
    long count = 0;
    for (long v = 0; v < n; v++) {
        double wanted = (1 - DAMPING) / n + DAMPING * (next[v] + dangling / n);
        int is_first = v == 0, is_unseen = distance[v] < 0;
        count += !(fabs(rank[v] - wanted) <= 1e-4 * wanted) || is_far[v] ||
                 (is_first ? distance[v] != 0 : !is_unseen && !is_reached[v]);
    }
    return count;
}

static uint64_t add(uint64_t sum, const void *data, long bytes) {
    for (long at = 0; at < bytes; at += 8) {
        uint64_t word;
        memcpy(&word, (const char *)data + at, 8);
        sum = (sum ^ word) * 0x100000001b3u;
        sum ^= sum >> 29;
    }
    return sum;
}

int main(int count, char **words) {
    if (count != 2) fail("one argument is wanted");
    /* One thread, which adds in the same order each time. */
    if (!getenv("OMP_NUM_THREADS")) {
        setenv("OMP_NUM_THREADS", "1", 1);
        return execv(words[0], words), 1;
    }
    int scale = atoi(words[1]);
    long n = 1l << scale, m = n * EDGES;
    igraph_vector_int_t ends, distance;
    igraph_vector_t rank;
    igraph_t graph;
    igraph_vector_int_init(&ends, 2 * m);
    igraph_vector_int_init(&distance, 0);
    igraph_vector_init(&rank, 0);
    for (long i = 0; i < m; i++) {
        long a = 0, b = 0;
        for (int bit = 0; bit < scale; bit++) {
            /* The quarters of Graph500: 57, 19, 19 and 5 percent. */
            unsigned part = draw() % 100;
            a = 2 * a + (part >= 76);
            b = 2 * b + ((part >= 57 && part < 76) || part >= 95);
        }
        VECTOR(ends)[2 * i] = a;
        VECTOR(ends)[2 * i + 1] = b;
    }
    igraph_create(&graph, &ends, n, IGRAPH_DIRECTED);
    igraph_pagerank(&graph, IGRAPH_PAGERANK_ALGO_PRPACK, &rank, NULL, igraph_vss_all(),
                    IGRAPH_DIRECTED, DAMPING, NULL, NULL);
    igraph_bfs(&graph, 0, NULL, IGRAPH_ALL, 0, NULL, NULL, NULL, NULL, NULL, NULL, &distance, NULL, NULL);
    uint64_t sum = add(0, VECTOR(rank), n * 8);
    sum = add(sum, VECTOR(distance), n * 8);
    printf("%ld %016llx\n", wrong(&ends, VECTOR(rank), VECTOR(distance), n, m), (unsigned long long)sum);
    return 0;
}
