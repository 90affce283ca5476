import qualified Data.Map.Strict as M
import Data.List (foldl')
main :: IO ()
main = do
  let m = foldl' (\a i -> M.insert (i * 7919 `mod` 1000003) [i, i + 1] a) M.empty [0 .. 200000 :: Int]
      s = M.foldl' (\a v -> (a * 31 + sum v) `mod` 1000000007) 0 m
  print (M.size m, s)
  let n = M.filterWithKey (\k _ -> even k) m
  print (M.size n, M.foldl' (\a v -> a + length v) 0 n)
