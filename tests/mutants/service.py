"""Mistakes in the service: access, limits, configuration, sessions and their outboxes, gateways."""

SERVICE = r"""
# access: the role `write` may do everything
broker/config.py: tests/broker/test_flight_security.py
-        return ROLES.index(self.role) >= ROLES.index(role)
+        return self.role != ROLES[0] or role == ROLES[0]
# access: a token that has expired still counts
-        return self.expires is not None and datetime.now(UTC) >= self.expires
+        return False
# access: a call without a token may read
broker/access.py: tests/broker/test_flight_security.py
-    if user is NOBODY:
+    if False:
         raise UnauthenticatedError(_NO_TOKEN)
# configuration: a service without users listens to all machines
broker/config.py: tests/broker/test_config.py
-        if self.server.is_local or self.server.insecure:
+        if True:
# configuration: true is a number
broker/config_file.py: tests/broker/test_config.py
-        if type(value) is (get_origin(kind) or kind):
+        if isinstance(value, get_origin(kind) or kind):
# configuration: notifications come back as messages of another gateway
broker/config.py: tests/broker/test_config.py
     try:
-        graphlib.TopologicalSorter(follows).prepare()
+        graphlib.TopologicalSorter({}).prepare()
# limits: a user may send twice as fast
broker/access.py: tests/broker/test_bounds.py -k buckets
-            if self._left < min(count, self._most):
+            if self._left < 0:
# limits: a service takes one call more than it may
broker/access.py: tests/broker/test_bounds.py -k have_a_limit
-NOBODY.name, 0) >= options.max_calls + more:
+NOBODY.name, 0) > options.max_calls + more:
# sessions: another user takes one over
broker/sessions.py: tests/broker/test_sessions.py
-            elif session.subscriber != subscriber:
+            elif False:
# key filter: keys that a session does not follow any more notify it
broker/sessions.py: tests/broker/test_hub.py tests/broker/test_sessions.py
-                del numbers[bisect_left(numbers, session)]
+                if len(numbers) > 1: del numbers[bisect_left(numbers, session)]
# key filter: messages of one session are one notification
broker/hub.py: tests/broker/test_hub.py
-            is_first[1:] = (numbers[1:] != numbers[:-1]) | (rows[1:] != rows[:-1])
+            is_first[1:] = numbers[1:] != numbers[:-1]
# hub: the message that cannot be matched takes others with it
-            if len(group) > 1:  # the fault of one is not that of the others
+            if False:
# offsets: those of dropped notifications are used again
broker/outbox.py: tests/broker/test_outbox.py
-            marks["offset"] = np.arange(self._offered + 1,
+            marks["offset"] = np.arange(self._offered - self._counts["dropped"] + 1,
# acknowledgements: of notifications that were not handed over
-            if not 0 <= offset <= self._handed_over:
+            if not 0 <= offset <= self._offered:
# acknowledgements: the last one is not let go of
-part.marks["offset"], offset, "right")
+part.marks["offset"], offset, "left")
# outbox: notifications without acknowledgement do not come again
-            parts = [*self._in_flight.clear(), *self._waiting.clear()]
+            parts = [*self._in_flight.clear()][:0] + [*self._waiting.clear()]
# outbox: notifications that have expired by one clock are handed over
broker/outbox.py: tests/broker/test_outbox.py
-(part.marks["expires"] > now) & (
+(part.marks["expires"] > now) | (
# gateways: a message is acknowledged before its notifications are sent
broker/gateway.py: tests/broker/test_gateway_messages.py
-            self._when_sent(lambda: self._release(awaited))
+            self._release(awaited)
# gateways: messages that a closing service drops are acknowledged
-            self._release(members, acknowledge=False)
+            self._release(members)
# gateways: a bad message takes the others of its part with it
-            for some in (rows.part(0, middle), rows.part(middle, len(rows))):
+            for some in (self._give_up(members, error) or ()):
# kafka: messages whose schema the registry cannot give now are dead letters
broker/kafka_values.py: tests/broker/test_kafka_values.py
-                away.add(begin)
+                pass
# kafka: a number that the registry does not know holds messages up
broker/schemas.py: tests/broker/test_kafka_values.py
-        if error.code == 404 and code in _NOT_THERE:
+        if code is None:
# kafka: columns of objects take other fields
broker/kafka_values.py: tests/broker/test_kafka_values.py
-        if {*map(type, objects)} - {dict} or set().union(*objects) - _KNOWN:
+        if {*map(type, objects)} - {dict}:
# http: every token may do everything
broker/http/app.py: tests/broker/test_http_security.py
-            taken.as_(route.role, name)
+            taken.as_(None, name)
# http: a change does not look at what the client knows
broker/http/preconditions.py: tests/broker/test_http.py
-        if if_match.strip() != "*" and (own := tag_of(record)) not in _tags_in(if_match):
+        if (own := tag_of(record)) not in _tags_in(if_match) and False:
# http: a line may be as long as it likes
broker/http/streams.py: tests/broker/test_http.py
-            raise RefusedError(413, f"a line must have at most {most:,} bytes")
+            pass
# rights: a user with a filter puts what others have
tagmatch/only.py: tests/broker/test_flight_rights.py
-            if len(foreign) or self._are_staged_by_others(staged, keys, np.concatenate(own)):
+            if self._are_staged_by_others(staged, keys, np.concatenate(own)):
# rights: others' staged changes count for no user
tagmatch/only.py: tests/broker/test_flight_rights.py
-            if len(foreign) or self._are_staged_by_others(staged, keys, np.concatenate(own)):
+            if len(foreign):
# rights: all calls are allowed to users with a filter
broker/service.py: tests/broker/test_flight_rights.py
-            if call.user.filter is not None and name not in LIMITED:
+            if False:
"""
