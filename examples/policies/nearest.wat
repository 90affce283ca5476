;; A placement policy for `hiroma sim`: the nearest peer with a free frame, ties broken at random.
;; It decides as the built-in `nearest` does. docs/guide/own-policies.md describes the interface.
(module
  (import "hiroma" "random_below" (func $random_below (param i32) (result i32)))

  ;; 64 KiB: room for the 4096 peers that a node may have.
  (memory (export "memory") 1)

  (func (export "placement_abi") (result i32)
    (i32.const 1))

  (func (export "peers_buffer") (param $peers i32) (result i32)
    (i32.const 0))

  (func (export "choose") (param $peers i32) (result i32)
    (local $peer i32) (local $at i32) (local $chosen i32) (local $hops i32) (local $ties i32)
    (local.set $chosen (i32.const -1))
    (block $done
      (loop $next
        (br_if $done (i32.eq (local.get $peer) (local.get $peers)))
        ;; A peer has 16 bytes: free frames, capacity, hops, flags.
        (local.set $at (i32.mul (local.get $peer) (i32.const 16)))
        (if (i32.and
              (i32.ne (i32.load (local.get $at)) (i32.const 0))
              (i32.eqz (i32.load offset=12 (local.get $at))))
          (then
            (if (i32.eq (local.get $chosen) (i32.const -1))
              (then
                (local.set $chosen (local.get $peer))
                (local.set $hops (i32.load offset=8 (local.get $at)))
                (local.set $ties (i32.const 1)))
              (else
                ;; Peers come nearest first: the ties follow the first candidate.
                (br_if $done (i32.ne (i32.load offset=8 (local.get $at)) (local.get $hops)))
                (local.set $ties (i32.add (local.get $ties) (i32.const 1)))
                (if (i32.eqz (call $random_below (local.get $ties)))
                  (then (local.set $chosen (local.get $peer))))))))
        (local.set $peer (i32.add (local.get $peer) (i32.const 1)))
        (br $next)))
    (local.get $chosen)))
