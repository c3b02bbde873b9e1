#!/usr/bin/env python3
"""Writes the cases that tests/oracle.rs checks: python3 generate.py, with SciPy 1.17 and mpmath 1.4.

An answer is SciPy's if mpmath (50 digits, from the same doubles) agrees to 2e-13; otherwise it is
mpmath's, and the case is marked, as SciPy's own has then lost digits. How many were is printed.
"""
import json
import math
import random

import mpmath as mp
import numpy as np
from scipy import integrate, optimize, special, stats

mp.mp.dps = 50
random.seed(20261121)
lost = {}


def agreed(kind, scipys, exact):
    """The answer and who gave it."""
    total, bad = lost.get(kind, (0, 0))
    exact = mp.mpf(exact)
    same = scipys == exact or abs(mp.mpf(float(scipys)) - exact) <= mp.mpf("2e-13") * abs(exact)
    lost[kind] = (total + 1, bad + (not same))
    return (float(scipys), "scipy") if same else (float(exact), "mpmath")


def tail(df, t):
    """Two-sided p of Student's t, by the integral itself if the tail is long."""
    df, t = mp.mpf(df), mp.mpf(t)
    x = df / (df + t * t)
    return mp.betainc(df / 2, mp.mpf(1) / 2, 0, x, regularized=True)


def quantile(df, alpha):
    guess = mp.mpf(float(stats.t.isf(alpha / 2, float(df))))
    # Newton on ln p by ln t, from SciPy's answer.
    df = mp.mpf(df)
    norm = mp.exp(mp.loggamma((df + 1) / 2) - mp.loggamma(df / 2)) / mp.sqrt(df * mp.pi)
    for _ in range(6):
        p = tail(df, guess)
        density = norm * (1 + guess * guess / df) ** (-(df + 1) / 2)
        guess *= mp.exp(p * mp.log(p / alpha) / (2 * guess * density))
    return guess


def degrees():
    kind = random.randrange(4)
    if kind == 0:
        return float(random.choice([1, 2, 3, 4, 5, 7, 9, 18, 30, 100, 1000, 10**5, 10**6]))
    if kind == 1:
        return round(random.uniform(1, 40), 6)
    return float("%.7g" % math.exp(random.uniform(0, math.log(1e6))))


def students(file):
    done = 0
    while done < 2400:
        df = degrees()
        if random.random() < 0.4:
            t = float("%.8g" % random.uniform(0, 6))
        else:  # any depth of the tail, evenly in ln p
            wanted = math.exp(-random.uniform(0, 470))
            t = float("%.8g" % stats.t.isf(wanted / 2, df))
        if not 0 <= t < 1e250:
            continue
        answer, by = agreed("student", 2 * stats.t.sf(t, df), tail(df, t))
        if answer < 1e-205:
            continue
        file.write(f"{df!r} {t!r} {answer!r} {by}\n")
        done += 1


def quantiles(file):
    for _ in range(600):
        df = degrees()
        alpha = random.choice([0.05, 0.01, 0.001, 0.1, 0.5, 1e-6, 1e-12, random.random()])
        answer, by = agreed("quantile", stats.t.isf(alpha / 2, df), quantile(df, alpha))
        file.write(f"{df!r} {alpha!r} {answer!r} {by}\n")


def sample():
    """Two samples of short decimals, so that the file is small and every reader sees the same doubles."""
    kind = random.randrange(8)
    sizes = [random.choice([2, 3, 4, 5, 8, 9, 10, 14]) for _ in range(2)]
    if kind == 0 and random.random() < 0.2:
        sizes = [random.randrange(30, 60), random.randrange(30, 60)]
    shift = random.choice([0, 0, 0.5, 1, 3, 30, 1e4])
    scale = random.choice([1e-6, 1, 1, 40, 1e9])
    spreads = [1, random.choice([1, 1, 0.1, 7])]
    draw = [lambda: random.gauss(0, 1), lambda: random.lognormvariate(0, 1), lambda: random.random(),
            lambda: float(random.randrange(4)), lambda: random.expovariate(1)][kind % 5]
    sides = []
    for side, size in enumerate(sizes):
        values = [(draw() * spreads[side] + side * shift) * scale for _ in range(size)]
        sides.append([float("%.6g" % value) for value in values])
    if kind == 7:  # far from zero: the variance is lost in one pass
        offset = random.choice([1e9, -1e12, 4e15])
        sides = [[offset + round(value) for value in values] for values in sides]
    return sides


def welch(good, bad):
    a, b = [[mp.mpf(value) for value in side] for side in (good, bad)]
    means = [mp.fsum(side) / len(side) for side in (a, b)]
    v = [mp.fsum((value - mean) ** 2 for value in side) / (len(side) - 1) / len(side)
         for side, mean in zip((a, b), means)]
    se = mp.sqrt(v[0] + v[1])
    t = (means[0] - means[1]) / se
    df = (v[0] + v[1]) ** 2 / (v[0] ** 2 / (len(a) - 1) + v[1] ** 2 / (len(b) - 1))
    half = quantile(df, 0.05) * se
    return t, df, tail(df, abs(t)), means[0] - means[1] - half, means[0] - means[1] + half


def asymptotic(good, bad):
    both = good + bad
    n1, n2, n = len(good), len(bad), len(both)
    ranks = stats.rankdata(both)
    u = mp.mpf(float(sum(ranks[:n1]))) - mp.mpf(n1 * (n1 + 1)) / 2
    ties = sum(count**3 - count for count in np.unique(both, return_counts=True)[1].tolist())
    s = mp.sqrt(mp.mpf(n1 * n2) / 12 * ((n + 1) - mp.mpf(ties) / (n * (n - 1))))
    z = (max(u, n1 * n2 - u) - mp.mpf(n1 * n2) / 2 - mp.mpf(1) / 2) / s
    return min(mp.mpf(1), mp.erfc(z / mp.sqrt(2)))


def exact(good, bad):
    """Counts the ways to reach each U, in whole numbers."""
    n1, n2 = len(good), len(bad)
    u = sum((a > b) + 0.5 * (a == b) for a in good for b in bad)
    u = int(max(u, n1 * n2 - u))
    ways = [1]
    for i in range(1, n1 + 1):
        up = [0] * (len(ways) + n2)
        longer = [0] * (len(ways) + n2 + i)
        for at, count in enumerate(ways):
            longer[at] += count
            longer[at + n2 + i] -= count
        for at in range(len(up)):
            up[at] = longer[at] + (up[at - i] if at >= i else 0)
        ways = up
    return min(mp.mpf(1), mp.mpf(2 * sum(ways[u:])) / mp.mpf(math.comb(n1 + n2, n1)))


def samples(file):
    done = 0
    while done < 900:
        good, bad = sample()
        if len(set(good)) == 1 and len(set(bad)) == 1:
            continue
        ours = welch(good, bad)
        if ours[2] < mp.mpf(10) ** -200:
            continue
        theirs = stats.ttest_ind(good, bad, equal_var=False)
        interval = theirs.confidence_interval(0.95)
        theirs = (theirs.statistic, theirs.df, theirs.pvalue, interval.low, interval.high)
        case = {"good": good, "bad": bad}
        marks = []
        for name, scipys, mpmaths in zip(("t", "df", "p", "low", "high"), theirs, ours):
            case[name], by = agreed("welch " + name, scipys, mpmaths)
            if by == "mpmath":
                marks.append(name)
        rank = stats.mannwhitneyu(good, bad, alternative="two-sided", method="auto")
        case["u"] = float(rank.statistic)
        ties = len(set(good + bad)) < len(good + bad)
        small = min(len(good), len(bad)) <= 8 and not ties
        if ties and len(set(good + bad)) == 1:
            continue
        case["rank_p"], by = agreed("rank p", rank.pvalue, (exact if small else asymptotic)(good, bad))
        if by == "mpmath":
            marks.append("rank_p")
        if marks:
            case["mpmath"] = marks
        file.write(json.dumps(case, separators=(",", ":")) + "\n")
        done += 1


def families(file):
    for _ in range(60):
        ps = [float("%.4g" % random.random() ** random.choice([1, 3, 8])) for _ in range(random.randrange(1, 25))]
        adjusted = stats.false_discovery_control(ps, method="bh").tolist()
        file.write(json.dumps({"p": ps, "adjusted": adjusted}, separators=(",", ":")) + "\n")


def noncentral(file):
    """The distribution function of the noncentral t, as an integral over the scale."""
    mp.mp.dps = 30
    for _ in range(120):
        df = round(random.uniform(1, 60), 3)
        delta = round(random.uniform(-6, 6), 3)
        t = round(delta + random.uniform(-3, 3), 3)
        def inner(s):
            log = (df / 2) * mp.log(df / 2) - mp.loggamma(df / 2) + mp.log(2) + (df - 1) * mp.log(s)
            return mp.ncdf(t * s - delta) * mp.exp(log - df * s * s / 2)
        exact = mp.quad(inner, [0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3, 5, 9])
        file.write(f"{df!r} {delta!r} {t!r} {float(exact)!r}\n")
    mp.mp.dps = 50


def effects(file):
    """Effect sizes, power and sample sizes, by root finding on the noncentral t.

    SciPy's own is NaN for some of these; this is its integral over the scale, which is a chi variate.
    """
    def cdf(t, df, delta):
        scale = stats.chi(df, scale=1 / math.sqrt(df))
        inside = lambda s: stats.norm.cdf(t * s - delta) * scale.pdf(s)
        step = [p for p in (delta / t,) if 0 < p < scale.isf(1e-13)] if t else []
        return integrate.quad(inside, 0, scale.isf(1e-13), points=step + [1.0], limit=400, epsabs=1e-12)[0]

    random.seed(6)
    for _ in range(40):
        sizes = [random.randrange(3, 14) for _ in range(2)]
        shift, spread = random.choice([0, 0.5, 2, 6]), random.choice([1, 3])
        good = [float("%.5g" % random.gauss(20, 1)) for _ in range(sizes[0])]
        bad = [float("%.5g" % (random.gauss(20, spread) + shift)) for _ in range(sizes[1])]
        (m1, m2), (v1, v2), (n1, n2) = [[f(side) for side in (good, bad)]
                                        for f in (np.mean, lambda side: np.var(side, ddof=1), len)]
        se = math.sqrt(v1 / n1 + v2 / n2)
        df = (v1 / n1 + v2 / n2) ** 2 / ((v1 / n1) ** 2 / (n1 - 1) + (v2 / n2) ** 2 / (n2 - 1))
        t = (m2 - m1) / se
        effect_df = (v1 + v2) ** 2 / (v1**2 / (n1 - 1) + v2**2 / (n2 - 1))
        unbiased = math.exp(special.gammaln(effect_df / 2) - special.gammaln((effect_df - 1) / 2))
        unbiased /= math.sqrt(effect_df / 2)
        per_t = se / math.sqrt((v1 + v2) / 2) * unbiased
        bound = lambda q: optimize.brentq(lambda d: cdf(t, effect_df, d) - q, t - 30, t + 30)
        quantile = stats.t.isf(0.025, df)

        def power(delta, df):
            q = stats.t.isf(0.025, df)
            return 1 - cdf(q, df, delta) + cdf(-q, df, delta)

        def ratio(sign, low, high):  # Fieller: where m2 - r m1 is just significant
            excess = lambda r: (m2 - r * m1) - sign * quantile * math.sqrt(v2 / n2 + r * r * v1 / n1)
            return optimize.brentq(excess, low, high) - 1

        runs = 2
        while runs < 200 and power(abs(m2 - m1) / math.sqrt((v1 + v2) / runs),
                                   (runs - 1) * (v1 + v2) ** 2 / (v1**2 + v2**2)) < 0.8:
            runs += 1
        file.write(json.dumps({
            "good": good, "bad": bad, "g": t * per_t, "g_low": bound(0.975) * per_t,
            "g_high": bound(0.025) * per_t, "change_low": ratio(1, -5, m2 / m1),
            "change_high": ratio(-1, m2 / m1, 5),
            "detectable": optimize.brentq(lambda d: power(d, df) - 0.8, 0, 12) * se,
            "runs": runs}, separators=(",", ":")) + "\n")


for write, name in ((students, "student.txt"), (quantiles, "quantile.txt"), (samples, "samples.jsonl"),
                    (families, "families.jsonl"), (noncentral, "noncentral.txt"), (effects, "effects.jsonl")):
    with open(name, "w") as file:
        write(file)
    print(name)
for kind, (total, bad) in lost.items():
    print(f"{kind}: SciPy lost digits in {bad} of {total}")
