let () =
  let h = Hashtbl.create 16 in
  for i = 0 to 249_999 do Hashtbl.replace h (i * 7919 mod 1000003) (i, string_of_int i) done;
  let s = ref 0 in
  for i = 0 to 1000002 do match Hashtbl.find_opt h i with Some (v, t) -> s := (!s * 31 + v + String.length t) mod 1000000007 | None -> () done;
  Gc.compact ();
  let l = List.sort compare (List.init 300_000 (fun i -> i * 7919 mod 1000003)) in
  Printf.printf "%d %d %d\n" (Hashtbl.length h) !s (List.nth l 150_000)
