"""A writer and two replicas as processes, behind a balancer: killed, drained and upgraded while clients ask."""

import contextlib
import random
import signal
import socket
import threading
import time
import urllib.request

import pytest
from support.brokers import Proxy, free_port
from support.service import Served
from support.waiting import wait_until

from tagmatch import TagMatchError, UnavailableError, connect

pytestmark = pytest.mark.nightly
pytest_plugins = ["support.s3_bucket"]

LONG = 120
#: The oldest state that an answer may have, in seconds; a second is promised, and this machine may be busy
BOUND = 30.0
#: Keys of a state: its number and those before it
KEYS = 5
#: The key that the session follows, of a set that always is stored
FOLLOWED = 10**6


class Service:
    """`tagmatch serve` on ports that stay the same; it may be killed, or drained, and started again."""

    def __init__(self, folder, name, *arguments, index=""):
        self.port, self.metrics = free_port(), free_port()
        self._config = folder / f"{name}.toml"
        self._config.write_text(f"[http]\nenabled = false\n[metrics]\nport = {self.metrics}\n[index]\n{index}\n")
        self._arguments = arguments
        self.start()

    def start(self):
        self._served = Served(*self._arguments, "--config", self._config, "--port", self.port)

    def kill(self):
        self._served.kill()

    def drain(self):
        self._served.process.send_signal(signal.SIGTERM)
        code, log = self._served.end()
        assert code == 0, log

    @property
    def is_ready(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/readyz", timeout=10) as answer:
                return answer.status == 200
        except OSError:
            return False


class Balancer(Proxy):
    """Sends each connection to a service that is ready: the first such, where a token is pinned, else each in turn."""

    def __init__(self, services, *, pinned):
        self._services, self._pinned, self._turn = services, pinned, 0
        super().__init__(0)

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._turn += not self._pinned
                order = [self._services[(self._turn + at) % len(self._services)] for at in range(len(self._services))]
                for service in order:
                    with contextlib.suppress(OSError):
                        if service.is_ready:
                            server = socket.create_connection(("127.0.0.1", service.port))
                            break
                else:
                    client.close()
                    continue
                with self._lock:
                    self._sockets += [client, server]
                for one, other in ((client, server), (server, client)):
                    threading.Thread(target=self._copy, args=(one, other, bytes), daemon=True).start()

    @property
    def url(self):
        return f"grpc://127.0.0.1:{self.port}"


class Clients:
    """The requests and answers of clients; each repeats only those that failed as the service was gone."""

    def __init__(self):
        self.ended = threading.Event()
        self.errors, self.again = list[BaseException](), dict[str, int]()
        self.committed: list[float] = []  # when each state was known to be committed
        self.began: list[float] = []  # when each state was first asked for
        self.answers: list[tuple[float, float, frozenset[int]]] = []
        self.published: list[tuple[float, float]] = []  # from when to when each message was on its way
        self.received: dict[int, float] = {}
        self.redelivered = 0

    def repeat(self, url, name, step):
        """Do a step again and again, with a connection that is made anew after an error."""
        try:
            while not self.ended.is_set():
                try:
                    with connect(url, wait=5) as tm:
                        while not self.ended.is_set():
                            step(tm)
                except UnavailableError:
                    self.again[name] = self.again.get(name, 0) + 1
                    time.sleep(0.02)
        except BaseException as error:
            self.errors.append(error)

    def change(self, tm):
        number = len(self.committed)
        if len(self.began) == number:
            self.began.append(time.monotonic())
        tm.add_sets([["a"], ["s"]], [number, FOLLOWED])
        tm.remove_sets([["a"]], [max(number - KEYS, 0)] if number >= KEYS else [FOLLOWED])
        tm.consolidate()
        self.committed.append(time.monotonic())
        time.sleep(0.1)

    def ask(self, tm):
        began = time.monotonic()
        keys = frozenset(tm.match(["a", "b"]))
        self.answers.append((began, time.monotonic(), keys))
        time.sleep(0.002)

    def publish(self, tm):
        began = time.monotonic()
        tm.publish([["s"]], [b"%d" % len(self.published)])
        self.published.append((began, time.monotonic()))
        time.sleep(0.01)

    def take(self, tm):
        with tm.subscriber("phone", [FOLLOWED], guarantee="at_least_once") as phone:
            for each in phone:
                self.redelivered += each.redelivered
                self.received.setdefault(int(each.payload), time.monotonic())
                if len(self.received) % 7 == 0:
                    phone.acknowledge()
                if self.ended.is_set():
                    return
        raise UnavailableError("the service ends")  # a drained one says so by the end of the iteration

    def wrong(self, away):
        """Answers that are of no state, or of one that was not there yet, or older than the bound; and the oldest.

        From when to when the writer was `away` does not count: it may not have copied its last state before.
        """
        states = {frozenset(range(max(at - KEYS + 1, 0), at + 1)): at for at in range(len(self.began))}
        wrong, oldest = [], 0.0
        for began, ended, keys in self.answers:
            at = states.get(keys)
            if at is None or self.began[at] > ended:
                wrong.append((keys, "no state"))
            elif at + 1 < len(self.committed):
                next_ = self.committed[at + 1]
                age = began - next_ - max(0.0, min(began, away[1]) - max(next_, away[0]))
                oldest = max(oldest, age)
                if age > BOUND:
                    wrong.append((keys, age))
        return wrong, oldest


@pytest.mark.parametrize("place", ["shared folder", "copy", "failing store"])
def test_no_answer_is_lost_or_wrong(place, tmp_path, request):
    seed = random.randrange(2**32)
    draw, index, copy = random.Random(seed), tmp_path / "index", tmp_path / "copy"
    print("seed", seed)
    if place == "failing store":
        copy, asked = request.getfixturevalue("uri"), request.getfixturevalue("asked")
        asked.fail_now_and_then(random.Random(seed), 0.1)
    followed, given = (
        (index, "create = true") if place == "shared folder" else (copy, f'create = true\ncopy_to = "{copy}"')
    )
    with contextlib.ExitStack() as stack:
        writer = Service(tmp_path, "writer", index, index=given)
        stack.callback(lambda: writer.kill())
        clients = Clients()
        with connect(f"grpc://127.0.0.1:{writer.port}") as tm:
            clients.change(tm)
        replicas = []
        for name in ("one", "two"):
            replicas.append(Service(tmp_path, name, followed, "--follow", index=f'writer = "port {writer.port}"'))
            stack.callback(replicas[-1].kill)
        spread = stack.enter_context(contextlib.closing(Balancer(replicas, pinned=False)))
        pinned = stack.enter_context(contextlib.closing(Balancer(replicas, pinned=True)))
        work = [
            (f"grpc://127.0.0.1:{writer.port}", "change", clients.change),
            *[(spread.url, "ask", clients.ask)] * 3,
            (pinned.url, "take", clients.take),
            (pinned.url, "publish", clients.publish),
        ]
        threads = [threading.Thread(target=clients.repeat, args=each, daemon=True) for each in work]
        stack.callback(clients.ended.set)
        for each in threads[:-1]:
            each.start()
        with connect(pinned.url) as tm:  # a message that comes before the session is for no one
            wait_until(lambda: any(each["connected"] for each in tm.sessions()), LONG)
        threads[-1].start()

        def all_go_on():
            counts = len(clients.committed), len(clients.answers), len(clients.published), len(clients.received)
            wait_until(
                lambda: clients.errors or all(
                    now >= before + 20 for now, before in zip(
                        (len(clients.committed), len(clients.answers), len(clients.published), len(clients.received)),
                        counts, strict=True,
                    )
                ), LONG,
            )  # fmt: skip
            assert clients.errors == []

        moved: list[tuple[float, float]] = []  # from when to when the session had no service, or another one
        all_go_on()
        time.sleep(draw.random())
        killed = time.monotonic()
        writer.kill()
        before = len(clients.answers)
        wait_until(lambda: len(clients.answers) > before + 50, LONG)  # replicas do not need it
        writer.start()
        away = killed, time.monotonic()
        all_go_on()
        assert len(clients.received) > 0
        spread.cut()  # as a balancer that is started again does
        pinned.cut()
        all_go_on()
        for step, number in enumerate((1, 0, 1)):  # a kill loses only the messages that wait on the session's service
            time.sleep(draw.random())
            began = time.monotonic()
            replicas[number].kill()
            wait_until(lambda: len(clients.answers) > before + 50, LONG)
            replicas[number].start()
            all_go_on()
            moved += [(began - 1, time.monotonic())] if step else []  # the first one did not have it
        for each in replicas:  # an upgrade
            began = time.monotonic()
            each.drain()
            each.start()
            all_go_on()
            moved.append((began, time.monotonic()))
        last = len(clients.published)
        all_go_on()
        clients.ended.set()
        for each in threads[:4] + threads[5:]:
            each.join(LONG)
        assert clients.errors == []
        wrong, oldest = clients.wrong(away)
        lost = [
            at for at, (began, ended) in enumerate(clients.published[:last])
            if at not in clients.received and not any(first <= ended and began <= until for first, until in moved)
        ]  # fmt: skip
        print(
            f"{len(clients.committed)} states, {len(clients.answers)} answers, {len(wrong)} wrong, "
            f"the oldest {oldest:.2f} s; {len(clients.published)} published, {len(clients.received)} received, "
            f"{clients.redelivered} again, {len(lost)} lost; asked again {clients.again}"
        )
        if place == "failing store":
            print(f"the store was asked {len(asked.log)} times, and failed {asked.failed} times")
        assert (wrong, lost) == ([], [])
        assert {"change", "ask", "take", "publish"} <= clients.again.keys(), "nothing was cut"
        with pytest.raises(TagMatchError, match=f"make changes at port {writer.port}"), connect(spread.url) as tm:
            tm.add_set(["x"], 1)
