"""Mistakes in matching: sets, constraints, areas, channels, Spark's join; and in workloads."""

MATCHING = r"""
# verification: a constraint that must not hold does not hold without a value
pipeline/filters/asked.py: tests/pipeline/test_filters.py
                     return not negated[constraint]
-    return negated[constraint]
+    return False
# verification: the first tag of a set is not verified
pipeline/tags.py: tests/pipeline/test_one_query.py -k seem
-    if end - at > _FEW_RANKS:
+    begin += 1
+    if end - at > _FEW_RANKS:
# large clusters: rows behind one that failed are passed over, though they differ before that place
pipeline/clusters.py: tests/pipeline/test_large_clusters.py -k few_tags
-            while row < near and _U(shared[row]) > failed - begin:
+            while row < near and _U(shared[row]) >= failed - begin:
# brief messages: one that comes by many nodes of the trie is answered at once, too
pipeline/filters/finder.py: tests/pipeline/test_awaited.py -k many_nodes
-    if most < ALL:
+    if False:
# unique merge: a key that several sets have comes for each
pipeline/unique.py: tests/pipeline/test_packets.py -k answers_of_any
-        if is_alike(before, several):
+        if False:
# unique merge: keys that are strings come once for each segment
pipeline/combined.py: tests/interface/test_contents.py -k two_segments
-        if not unique:
+        if True:
# small packets: messages whose tags are a dictionary lose their attributes
model/input/messages.py: tests/pipeline/cuda/test_gpu_hybrid.py -k small_packets_keep
-    attributes = None if rows.attributes is None else rows.attributes.part(first, last)
+    attributes = None
# string keys: the numbers of a segment's keys are those of the first one
pipeline/combined.py: tests/interface/test_contents.py -k two_segments
-    return Lists(keys.offsets, keys.values + np.uint64(first)) if first else keys
+    return keys
# deletions: a set that was changed answers with its old keys, too
partitioner/consolidation.py: tests/interface/test_incremental.py -k few_changes
-            kept.append(rest.without(changed[len(due) :]))
+            kept.append(rest)
# merging in the background: sets removed during a merge are there again
partitioner/consolidation.py: tests/interface/test_incremental.py -k during
-        if len(rows):
+        if False:
             gone
# merging in the background: never
partitioner/consolidation.py: tests/interface/test_incremental.py -k background
-    return [] if alone_and_whole else by_size[:wanted]
+    return []
# expiry: a set whose first key expires loses the others
partitioner/consolidation.py: tests/interface/test_expiry.py -k goes_on
-    return len(rows) > 0 and (expires is None or bool((expires > now).any()))
+    return False
# expiry: a merge keeps keys that have expired
partitioner/local.py: tests/interface/test_expiry.py -k leaves_out
-        removed = removed | (expires <= now)
+        removed = removed | (expires < 0)
# where compiler: `not` of `and` is `and` of `not`
model/where/alternatives.py: tests/model/test_filter_constraints.py
-    least = len(expression.parts) - expression.least + 1 if negated else expression.least
+    least = expression.least
# normal form: tests of one attribute between `and` become one
model/where/alternatives.py: tests/model/test_filter_constraints.py
-        negated = [test for test in tests if test.negated]
+        negated = tests
# normal form: a value between two ranges is in both
model/where/alternatives.py: tests/model/test_filter_constraints.py
-(start == _ends(last) and each.lower.key == last.upper.key)
+each.lower.key == last.upper.key
# parts: one part too few finds a set
pipeline/filters/plans.py: tests/interface/test_at_least.py -k kept
-[owners] <= (sizes - least)[owners]
+[owners] < (sizes - least)[owners]
# parts: a set is passed over that one part more would find
pipeline/filters/plans.py: tests/interface/test_at_least.py -k kept
-max(used - most[number], 0)
+max(used - most[number] + 1, 0)
# parts: what two parts find is counted once
pipeline/filters/parts.py: tests/interface/test_at_least.py -k kept
-_U32(counts[number]) if
+_U32(1) if
# operators: `>` is `>=`
model/where/constraints.py: tests/model/test_filter_constraints.py
-"]v[e"
+"[v[e"
# where codec: negative numbers are in the wrong order
model/where/values.py: tests/model/test_filter_constraints.py
-    bits ^= _ALL_BITS if bits & SIGN else SIGN
+    bits ^= SIGN
# where language: a surrogate pair of escapes is two characters
model/where/language.py: tests/model/test_filter_language.py
-    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
+    return text
# areas of the sphere: a box across the anti-meridian has no place
model/kernels/sphere.py: tests/pipeline/areas -k columns_say
-(west <= lon or lon <= east)
+(west <= lon and lon <= east)
# areas of the plane: great radii overflow
model/kernels/sphere.py: tests/model/kernels/test_kernels_shared.py
-metres >= _LEAST and metres <= _GREATEST
+metres >= _LEAST
# moving clients: the last move of a call is not made
pipeline/areas/clients.py: tests/pipeline/cuda/test_gpu_areas.py -k move
-            moves = self._moves
+            moves = self._moves and self._moves[:-1]
# moving clients: one that leaves stays at its place
pipeline/areas/clients.py: tests/interface/test_areas.py -k ways_to_leave
+        there = ~np.isnan(lon)
-        clients, lon, lat = frozen(clients), frozen(lon), frozen(lat)
+        clients, lon, lat = frozen(clients[there]), frozen(lon[there]), frozen(lat[there])
# scheduler `edf`: messages go in the order in which they came
pipeline/run/orders.py: tests/pipeline/test_channel_orders.py -k priority
-        return entry.due, -entry.of.channel.priority, entry.number
+        return 0.0, 0, entry.number
# scheduler `edf`: less important messages keep out more important ones
pipeline/run/orders.py: tests/pipeline/test_channel_orders.py -k important
-            if line.of.channel.priority <= entry.of.channel.priority:
+            if line.of.channel.priority >= entry.of.channel.priority:
# scheduler `fifo`: late messages are dropped
pipeline/run/orders.py: tests/pipeline/test_channel_orders.py -k fifo
-        return now > entry.lifespan
+        return now > entry.due

     def _bound
# scheduler `dfgs`: a block is taken that would be late
pipeline/run/orders.py: tests/pipeline/test_channel_orders.py -k dfgs
-        return place if before + block <= entry.due else None
+        return place
# limits: any number of queries is let in
pipeline/run/callers.py: tests/pipeline/test_pipeline.py -k overload
-        if queries >= self._most_queries:
+        if False:
# Spark's shuffle: queries go to one bucket of a tag whose sets are in several
tagmatch/spark/shuffle.py: tests/spark/test_join.py -k oracles
-        return places, (self._first(hashes)[places] + nth) % self.count
+        return places, self._first(hashes)[places] % self.count
# Spark's shuffle: sets that nothing meets go to no home
tagmatch/spark/shuffle.py: tests/spark/test_join.py -k oracles
-        yield from serialized((label, number, homeless) for label, number in homes)
+        yield from ()
# Spark's function of columns: a task's batches of answers come in another order
tagmatch/spark/functions.py: tests/spark/test_join.py -k oracles
-    return pa.concat_arrays(found)
+    return pa.concat_arrays(found[::-1])
# workloads: the times of arrivals begin anew with each block
workloads/queries.py: tests/workloads/test_workloads_queries.py -k arrival
-        times = last + np.cumsum(
+        times = np.cumsum(
# workloads: a folder of others that looks like ours is overwritten
workloads/archives.py: tests/workloads/test_workload_command.py -k looks_like
-        if found and not foreign and not any(path.name in (FACTS, _BEGUN) for path in found):
+        if False:
"""
