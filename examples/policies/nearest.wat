;; A placement policy for `hiroma sim`: the nearest peer with a free frame, of equally near ones the
;; fastest, ties broken at random. It decides as the built-in `nearest` does.
;; docs/guide/own-policies.md describes the interface.
(module
  (import "hiroma" "random_below" (func $random_below (param i32) (result i32)))

  ;; 128 KiB: room for the 4096 peers that a node may have, and for those that join.
  (memory (export "memory") 2)

  (func (export "placement_abi") (result i32)
    (i32.const 2))

  (func (export "peers_buffer") (param $peers i32) (result i32)
    (i32.const 0))

  ;; A peer has 20 bytes: free frames, capacity, hops, flags, and its time for a page.
  (func $at (param $peer i32) (result i32)
    (i32.mul (local.get $peer) (i32.const 20)))

  (func $is_candidate (param $at i32) (result i32)
    (i32.and
      (i32.ne (i32.load (local.get $at)) (i32.const 0))
      (i32.eqz (i32.load offset=12 (local.get $at)))))

  ;; 0, which nobody knows, becomes the greatest number.
  (func $slowness (param $at i32) (result i32)
    (i32.sub (i32.load offset=16 (local.get $at)) (i32.const 1)))

  ;; Hops to the nearest candidate: one that joined may be nearer than those before it.
  (func $nearest (param $peers i32) (result i32)
    (local $peer i32) (local $at i32) (local $hops i32)
    (local.set $hops (i32.const -1))
    (block $done
      (loop $next
        (br_if $done (i32.eq (local.get $peer) (local.get $peers)))
        (local.set $at (call $at (local.get $peer)))
        (if (i32.and
              (call $is_candidate (local.get $at))
              (i32.lt_u (i32.load offset=8 (local.get $at)) (local.get $hops)))
          (then (local.set $hops (i32.load offset=8 (local.get $at)))))
        (local.set $peer (i32.add (local.get $peer) (i32.const 1)))
        (br $next)))
    (local.get $hops))

  (func (export "choose") (param $peers i32) (result i32)
    (local $peer i32) (local $at i32) (local $chosen i32) (local $hops i32) (local $ties i32)
    (local $slowness i32) (local $of_peer i32)
    (local.set $chosen (i32.const -1))
    (local.set $hops (call $nearest (local.get $peers)))
    (block $done
      (loop $next
        (br_if $done (i32.eq (local.get $peer) (local.get $peers)))
        (local.set $at (call $at (local.get $peer)))
        (if (i32.and
              (call $is_candidate (local.get $at))
              (i32.eq (i32.load offset=8 (local.get $at)) (local.get $hops)))
          (then
            (local.set $of_peer (call $slowness (local.get $at)))
            (if (i32.or
                  (i32.eq (local.get $chosen) (i32.const -1))
                  (i32.lt_u (local.get $of_peer) (local.get $slowness)))
              (then
                (local.set $chosen (local.get $peer))
                (local.set $slowness (local.get $of_peer))
                (local.set $ties (i32.const 1)))
              (else
                (if (i32.eq (local.get $of_peer) (local.get $slowness))
                  (then
                    (local.set $ties (i32.add (local.get $ties) (i32.const 1)))
                    (if (i32.eqz (call $random_below (local.get $ties)))
                      (then (local.set $chosen (local.get $peer))))))))))
        (local.set $peer (i32.add (local.get $peer) (i32.const 1)))
        (br $next)))
    (local.get $chosen)))
