"""Kernels that draw interests and tweets and write them as Arrow strings.

A user's rows depend on the seed and the user's number alone. A hashtag is a number until it is written: of a
synthetic tweet its rank, written `h5`; of a real one the number of its string.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.workloads.draws import mix, position, uniform
from tagmatch.workloads.twitter.laws import Followed, PowerLaw, draw_power_law

if TYPE_CHECKING:
    from tagmatch.model.arrays import F64Array, I64Array, U8Array

_U = np.uint64
# A user's random number plus these gives what its languages and its number of interests are drawn from, and, from the
# last on, its interests
_LANGUAGES, _SECOND_LANGUAGE, _FOLLOWED, _PUBLISHERS, _INTERESTS = _U(0), _U(1), _U(2), _U(3), _U(4)


class Languages(NamedTuple):
    """Languages by number; `first` and `second` are running sums of their shares, the last of which is 1."""

    one: float
    first: F64Array
    second: F64Array
    offsets: I64Array
    codes: U8Array


class SyntheticTweets(NamedTuple):
    """Laws of synthetic tweets, as fitted by `laws`."""

    inverse_exponent: float
    max_tweets: int
    frequent_from: float
    inverse_log_ratio: float
    max_hashtags: int
    hashtags: PowerLaw


class RealTweets(NamedTuple):
    """Tweets by publisher, hashtags by tweet, and the strings of both; without a tweet, tweets are synthetic.

    Publisher `p` has tweets `tweets[p]` to `tweets[p + 1]`, tweet `t` hashtags `numbers[offsets[t]:offsets[t + 1]]`,
    and the first `frequent` publishers are frequent writers.
    """

    frequent: int
    tweets: I64Array
    offsets: I64Array
    numbers: I64Array
    hashtag_offsets: I64Array
    hashtags: U8Array
    author_offsets: I64Array
    authors: U8Array


class Model(NamedTuple):
    """All that rows are drawn from.

    Of `alike` publishers, where they are that many, a user follows different ones, each as likely as any other; where
    it is 0, `popularity` is the law of the publisher of each interest.
    """

    seed: np.uint64
    languages: Languages
    followed: Followed
    alike: int
    popularity: PowerLaw
    synthetic: SyntheticTweets
    real: RealTweets


@inlined
def _random_of_user(user, model):
    return mix(_U(user) ^ mix(model.seed))


@kernel
def count_interests(first_user, model, out):
    """Write the number of interests of each user from `first_user` on."""
    for i in range(len(out)):
        random = _random_of_user(_U(first_user) + _U(i), model)
        out[i] = model.followed.values[position(model.followed.sums, uniform(random + _FOLLOWED))]


@inlined
def _draw_languages(random, languages):
    """Return a user's two languages, twice the same if it has one only."""
    at = uniform(random + _LANGUAGES)
    if at < languages.one:
        first = position(languages.first, at / languages.one)
        return first, first
    first = position(languages.first, (at - languages.one) / (1.0 - languages.one))
    # In the running sums without the first language, what comes after it moves down by its share
    sums = languages.second
    before = sums[first - _U(1)] if first > _U(0) else 0.0
    share = sums[first] - before
    at = uniform(random + _SECOND_LANGUAGE) * (1.0 - share)
    second = position(sums, at if at < before else at + share)
    return first, second


@inlined
def _permuted(x, count, random):
    """Return what is at `x` in a random order of the numbers below `count`.

    A Feistel network, walked until it gives such a number (J. Black, P. Rogaway, "Ciphers with Arbitrary Finite
    Domains", CT-RSA 2002), so that no order has to be kept. With four rounds, some pairs would be twice as likely.
    """
    half = _U(0)
    while _U(1) << (half + half) < count:
        half += _U(1)
    low = (_U(1) << half) - _U(1)
    while True:
        for step in range(10):
            x = ((x & low) << half) | ((x >> half) ^ (mix(random + (_U(step) << _U(32)) + (x & low)) & low))
        if x < count:
            return x


@inlined
def _random_of_publisher(publisher, model):
    return mix(_U(publisher) ^ mix(~model.seed))


@inlined
def _synthetic_tweets(random, law):
    """Return the number of tweets of the publisher with this random number, and whether it is a frequent writer."""
    u = uniform(random)
    return np.int64(min((1.0 - u) ** law.inverse_exponent, law.max_tweets)), u >= law.frequent_from


@kernel
def count_tweets(first_publisher, model, out):
    """Write the number of tweets of each publisher from `first_publisher` on, which must be synthetic."""
    for i in range(len(out)):
        random = _random_of_publisher(first_publisher + i, model)
        out[i] = _synthetic_tweets(random, model.synthetic)[0]


@inlined
def _draw_hashtags(random, law, numbers):
    """Write the different hashtags of a synthetic tweet to `numbers`; returns how many."""
    wanted = 1 + np.int64(min(np.log(1.0 - uniform(random)) * law.inverse_log_ratio, law.max_hashtags - 1.0))
    count = 0
    draw = random
    while count < wanted:
        draw += _U(1)
        number = draw_power_law(law.hashtags, uniform(draw))
        fresh = True
        for i in range(count):
            fresh &= numbers[i] != number
        if fresh:
            numbers[count] = number
            count += 1
    return count


@kernel
def _tweet(publisher, random, model, numbers):
    """Write the hashtags of one of the publisher's tweets; returns how many, and whether it is a frequent writer."""
    real = model.real
    if len(real.tweets) > 0:
        first, end = real.tweets[publisher], real.tweets[publisher + 1]
        tweet = first + np.int64(random % _U(end - first))
        start = real.offsets[tweet]
        count = real.offsets[tweet + 1] - start
        for i in range(count):
            numbers[i] = real.numbers[start + i]
        return count, publisher < real.frequent
    of_publisher = _random_of_publisher(publisher, model)
    tweets, frequent = _synthetic_tweets(of_publisher, model.synthetic)
    tweet = mix(of_publisher + _U(1) + random % _U(tweets))
    return _draw_hashtags(tweet, model.synthetic, numbers), frequent


@inlined
def _write_number(number, data, at):
    """Write `number` in decimal to `data[at:]`; returns the end."""
    number = _U(number)
    end, rest = at + _U(1), number
    while rest >= _U(10):
        end, rest = end + _U(1), rest // _U(10)
    place = end
    while place > at:
        place -= _U(1)
        data[place] = _U(48) + number % _U(10)
        number //= _U(10)
    return end


@inlined
def _write_string(offsets, strings, number, data, at):
    """Write string `number` to `data[at:]`; returns the end."""
    for i in range(_U(offsets[number]), _U(offsets[number + 1])):
        data[at] = strings[i]
        at += _U(1)
    return at


@kernel
def _write_tags(numbers, count, publisher, named, language, model, rows, tag):
    """Append a row: `count` hashtags and, if `named`, the publisher; returns the number of tags so far."""
    _, tag_offsets, data = rows
    codes, real = model.languages, model.real
    at = _U(tag_offsets[tag])
    for i in range(count):
        at = _write_string(codes.offsets, codes.codes, language, data, at)
        data[at] = ord("_")
        at += _U(1)
        if len(real.tweets) > 0:
            at = _write_string(real.hashtag_offsets, real.hashtags, numbers[i], data, at)
        else:
            data[at] = ord("h")
            at = _write_number(numbers[i], data, at + _U(1))
        tag += 1
        tag_offsets[tag] = at
    if named:
        data[at] = ord("@")
        at += _U(1)
        if len(real.tweets) > 0:
            at = _write_string(real.author_offsets, real.authors, publisher, data, at)
        else:
            data[at] = ord("p")
            at = _write_number(publisher, data, at + _U(1))
        tag += 1
        tag_offsets[tag] = at
    return tag


@kernel
def write_interests(first_user, starts, begin, end, model, numbers, rows, keys):
    """Write interests `begin` to `end` of users from `first_user` on, whose interests begin at `starts`."""
    user = np.searchsorted(starts, begin, side="right") - 1
    row, tag = begin, 0
    while row < end:
        random = _random_of_user(first_user + user, model)
        first, second = _draw_languages(random, model.languages)
        order = mix(random + _PUBLISHERS)
        while row < min(end, starts[user + 1]):
            number = _U(row - starts[user])
            interest = mix(random + _INTERESTS + number)
            if model.alike > 0:
                publisher = np.int64(_permuted(number, _U(model.alike), order))
            else:
                publisher = draw_power_law(model.popularity, uniform(interest))
            language = first if mix(interest + _U(1)) & _U(1) else second
            count, frequent = _tweet(publisher, mix(interest + _U(2)), model, numbers)
            tag = _write_tags(numbers, count, publisher, frequent, language, model, rows, tag)
            rows[0][row - begin + 1] = tag
            keys[row - begin] = first_user + user
            row += 1
        user += 1


@kernel
def write_tweets(first, seed, tweets, model, numbers, rows):
    """Write plain tweets `first`, `first + 1`, ...; `tweets` as in `RealTweets`, of publishers of either kind."""
    seed = mix(mix(model.seed) + seed)
    tag = 0
    for i in range(len(rows[0]) - 1):
        random = mix(_U(first + i) ^ seed)
        publisher = np.int64(position(tweets[1:], np.int64(mix(random) % _U(tweets[-1]))))
        language = position(model.languages.first, uniform(random + _U(1)))
        count, _ = _tweet(publisher, mix(random + _U(2)), model, numbers)
        tag = _write_tags(numbers, count, publisher, True, language, model, rows, tag)
        rows[0][i + 1] = tag
