/*
 * A simulator that is asked "what if": an epidemic among people who meet at random, warm on the day that matters.
 *
 *   cc -O2 branch_epidemic.c -o epidemic
 *   cowslip run -- ./epidemic 256 &            # MiB of people, and as much of who was infected when
 *   cowslip branch epidemic 0.04 0.06 0.08     # three measures from that day on; the simulation is where it was
 *
 * It is linked with nothing of Cowslip: without `cowslip run` it says what happens without a measure.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern int cowslip_branch_point(const char *name, int timeout_ms) __attribute__((weak));
static inline int branch_point(const char *name, int timeout_ms)
{ return cowslip_branch_point ? cowslip_branch_point(name, timeout_ms) : (errno = ENOSYS, -1); }

enum { CONTACTS = 8, INFECTIOUS_DAYS = 5, MOST_DAYS = 400, WHAT_IF_DAYS = 60 };
static const double RATE_AT_FIRST = 0.08;

static struct {
    uint32_t *infected_on; /* of each person: a day, or 0 */
    uint32_t *infected;    /* who, in the order in which it happened */
    uint32_t people, count, day;
    uint32_t count_on[MOST_DAYS + 1];
    uint64_t random;
} now;

static uint64_t next_random(void)
{
    now.random ^= now.random << 13;
    now.random ^= now.random >> 7;
    now.random ^= now.random << 17;
    return now.random * 0x2545f4914f6cdd1du;
}

static void infect(uint32_t person)
{
    if (now.infected_on[person] == 0) {
        now.infected_on[person] = now.day;
        now.infected[now.count++] = person;
    }
}

/* Who was infected in the last days meets others. */
static void step(double rate)
{
    uint32_t since = now.day > INFECTIOUS_DAYS ? now.count_on[now.day - INFECTIOUS_DAYS] : 0;
    uint32_t until = now.count, limit = rate * UINT32_MAX;
    now.day++;
    for (uint32_t i = since; i < until; i++)
        for (int contact = 0; contact < CONTACTS; contact++) {
            uint64_t random = next_random();
            if ((uint32_t)random < limit)
                infect((random >> 32) * now.people >> 32);
        }
    now.count_on[now.day] = now.count;
}

static void *allocate(size_t bytes)
{
    void *memory = malloc(bytes);
    if (!memory) {
        perror("memory for the people");
        exit(1);
    }
    return memset(memory, 0, bytes);
}

static int what_if(double rate)
{
    uint32_t day = now.day, before = now.count, peak = 0;
    for (int i = 0; i < WHAT_IF_DAYS; i++) {
        step(rate);
        uint32_t today = now.count - now.count_on[now.day - 1];
        peak = today > peak ? today : peak;
    }
    printf("rate %.3f from day %u on: %u more infected in %d days, %u on the worst\n", rate, day, now.count - before,
           WHAT_IF_DAYS, peak);
    return 0;
}

int main(int argc, char **argv)
{
    size_t bytes = (size_t)(argc > 1 ? atoi(argv[1]) : 256) << 20;
    now.people = bytes / sizeof *now.infected;
    if (bytes == 0 || bytes >> 34) {
        fprintf(stderr, "epidemic: MiB of people, from 1 to 16383\n");
        return 2;
    }
    now.infected_on = allocate(bytes);
    now.infected = allocate(bytes);
    now.random = 88172645463325252u;
    for (now.day = 1; now.count < 100;)
        infect((next_random() >> 32) * now.people >> 32);
    /* Until one in a hundred has had it. */
    while (now.count < now.people / 100 && now.day < MOST_DAYS - WHAT_IF_DAYS)
        step(RATE_AT_FIRST);
    printf("day %u: %u of %u people were infected\n", now.day, now.count, now.people);
    fflush(stdout);

    if (branch_point("epidemic", -1) >= 0) {
        const char *rate = getenv("COWSLIP_BRANCH_ARG");
        return what_if(rate ? atof(rate) : RATE_AT_FIRST);
    }
    if (errno == ENOSYS)
        fprintf(stderr, "epidemic: not under `cowslip run`: nobody can ask what if\n");
    return what_if(RATE_AT_FIRST);
}
