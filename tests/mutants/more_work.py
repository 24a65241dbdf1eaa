"""Mistakes that no wrong answer shows, as they only make more work."""

MORE_WORK = r"""
# Algorithm 2 without its mask check, on the CPU
pipeline/balanced.py: tests/pipeline/test_prefilters.py
-            if contains(query, masks[m]):
+            if True:
# Algorithm 2 without its mask check, on CUDA: counting
pipeline/cuda/balanced.py: tests/pipeline/cuda/test_gpu_batches.py -k routing
-_U(0):
+_U(0) or True:
                 cuda.atomic.add(counts, run - first, 1)
# Algorithm 2 without its mask check, on CUDA: queueing
-_U(0):
+_U(0) or True:
                 queued[
# Algorithm 4 given the whole partition's rows
pipeline/cuda/balanced.py: tests/pipeline/cuda/test_gpu_batches.py -k prefilter
-        a, b, c = known.masks[block, 0], known.masks[block, 1], known.masks[block, 2]
+        a = b = c = ~_U(0)
+        for other in range(known.first_blocks[run], known.first_blocks[run + np.uint32(1)]):
+            a, b, c = a & known.masks[other, 0], b & known.masks[other, 1], c & known.masks[other, 2]
# a block's mask whose first word is cleared
pipeline/balanced.py: tests/pipeline/test_prefilters.py
-                masks[block, 0] &= words[0][row]
+                masks[block, 0] = _U(0)
# a row beyond the last, which has all bits
pipeline/cuda/balanced.py: tests/pipeline/cuda/test_gpu_batches.py -k all_bits
- and row + r * ITEM_THREADS < end:
+:
                             # The bit
# a backup copies files that are there already
model/storage/copies.py: tests/interface/test_safety_copies.py -k new
-        if there.holds(own):
+        if False:
# an outbox keeps the memory of the whole batch of its notifications
broker/outbox.py: tests/broker/test_outbox.py -k memory
-        if self._held > 4 * self.nbytes + _SHARED_BYTES:
+        if False:
# keys that no session follows any more are never forgotten
broker/sessions.py: tests/broker/test_sessions.py -k forgotten
-                if not numbers:
+                if False:
"""
